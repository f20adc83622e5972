"""The operations of a population on its device: a training step and a scoring step on rows of its examples."""

import torch
from torch import Tensor

from mixerlab.kernels.fused import cross_entropy
from mixerlab.training.datamodule import Examples
from mixerlab.training.metrics import batch_scores
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import Population


class PopulationSteps:
    """The steps of `population`, optimised by `optimizer`; with `bf16` under bfloat16 autocast.

    No step decides anything on the host. All training steps launch the same operations on the same tensors, and so do
    all scoring steps.
    """

    def __init__(self, population: Population, optimizer: PopulationOptimizer, examples: Examples, *, bf16: bool):
        self.population, self.optimizer, self.examples, self.bf16 = population, optimizer, examples, bf16

    def written_tensors(self) -> list[Tensor]:
        """The tensors that a step changes and that outlive it."""
        return [*self.population.learned(), *self.optimizer.written_tensors()]

    def read_tensors(self) -> list[Tensor]:
        """The tensors that a step only reads, except `rows`. All tensors of a model must be parameters or buffers."""
        examples = [self.examples] if self.examples.apart is None else [self.examples, self.examples.apart]
        rows = [tensor for part in examples for tensor in (part.inputs, part.targets)]
        return [*self.optimizer.read_tensors(), *self.population.model.buffers(), *rows]

    def train(self, rows: Tensor) -> Tensor:
        """One optimizer step on rows `[R, B]` of the examples. Returns each replica's loss before the step, `[R]`."""
        loss, _ = cross_entropy(self._logits(self.examples, rows, training=True), self.examples.targets[rows])
        # Replicas do not interact, so each gets the gradient of its own loss.
        parameters = self.population.parameters_by_replica
        (parameters.grad,) = torch.autograd.grad(loss, parameters, torch.ones_like(loss))
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def score(self, rows: Tensor) -> Tensor:
        """`training.metrics.batch_scores` on rows `[R, B]` of the examples."""
        return self._scores(self.examples, rows)

    @torch.no_grad()
    def score_apart(self, rows: Tensor) -> Tensor:
        """The same of rows of `examples.apart`."""
        assert self.examples.apart is not None, "the test rows have another length"
        return self._scores(self.examples.apart, rows)

    def _scores(self, examples: Examples, rows: Tensor) -> Tensor:
        return batch_scores(self._logits(examples, rows, training=False), examples.targets[rows])

    def _logits(self, examples: Examples, rows: Tensor, training: bool) -> Tensor:
        self.population.model.train(training)  # dropout and the like are off while a model is scored
        with torch.autocast(rows.device.type, torch.bfloat16, enabled=self.bf16):
            return self.population(examples.inputs[rows], examples.scored)
