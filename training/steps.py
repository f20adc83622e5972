"""The operations of a population on its device: a training step and a scoring step on rows of its examples."""

import torch
from torch import Tensor

from mixerlab.kernels.fused import cross_entropy
from mixerlab.training.capture import Step
from mixerlab.training.datamodule import Examples
from mixerlab.training.metrics import IGNORE_INDEX, batch_scores
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import Population


class PopulationSteps:
    """The steps of `population`, optimised by `optimizer`; with `bf16` under bfloat16 autocast.

    `accumulate`: a step computes its gradient in so many parts of each batch, one after another, in less memory.
    No step decides anything on the host. All training steps launch the same operations on the same tensors, and so do
    all scoring steps.
    """

    def __init__(
        self,
        population: Population,
        optimizer: PopulationOptimizer,
        examples: Examples,
        *,
        bf16: bool,
        accumulate: int = 1,
    ):
        self.population, self.optimizer, self.examples, self.bf16 = population, optimizer, examples, bf16
        self.accumulate = accumulate
        # Where a captured `backward` leaves it; `train` keeps its own.
        self.gradient = None if optimizer.capturable else torch.zeros_like(population.parameters_by_replica.data)

    def written_tensors(self) -> list[Tensor]:
        """The tensors that a step changes and that outlive it."""
        gradient = [] if self.gradient is None else [self.gradient]
        return [*self.population.learned(), *self.optimizer.written_tensors(), *gradient]

    def train(self, rows: Tensor) -> Tensor:
        """One optimizer step on rows `[R, B]` of the examples. Returns each replica's loss before the step, `[R]`."""
        loss, self.population.parameters_by_replica.grad = self._loss_and_gradient(rows)
        self.optimizer.step()
        return loss

    def backward(self, rows: Tensor) -> Tensor:
        """The part of `train` before the optimizer's step, for one that is not captured: the gradient is in place."""
        assert self.gradient is not None, "the optimizer is captured"
        loss, gradient = self._loss_and_gradient(rows)
        self.gradient.copy_(gradient)
        return loss

    def train_after(self, backward: Step) -> Step:
        """`train` by a captured `backward`, and the optimizer launched by the host."""

        def train(rows: Tensor) -> Tensor:
            loss = backward(rows)
            self.population.parameters_by_replica.grad = self.gradient
            self.optimizer.step()
            return loss

        return train

    def _loss_and_gradient(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        parts = rows.chunk(self.accumulate, dim=1)
        if len(parts) == 1:
            return self._of_part(rows)
        # The mean over the targets of all parts: each counts by its share of them.
        counts = torch.stack([(self.examples.targets[part] != IGNORE_INDEX).sum(dim=(1, 2)) for part in parts])
        loss = torch.zeros_like(counts[0], dtype=torch.float32)
        gradient = torch.zeros_like(self.population.parameters_by_replica.data)
        for part, share in zip(parts, counts / counts.sum(dim=0).clamp(min=1), strict=True):
            own_loss, own_gradient = self._of_part(part)
            loss += share * own_loss
            gradient.addcmul_(own_gradient, share[:, None])
        return loss, gradient

    def _of_part(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        loss, _ = cross_entropy(self._logits(self.examples, rows, training=True), self.examples.targets[rows])
        # Replicas do not interact, so each gets the gradient of its own loss.
        (gradient,) = torch.autograd.grad(loss, self.population.parameters_by_replica, torch.ones_like(loss))
        return loss.detach(), gradient

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
