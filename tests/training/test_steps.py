"""A step touches only the tensors that `PopulationSteps` lists, so that a graph of it can serve other tensors."""

import pytest
import torch
from every_mixer import MIXERS, mixer_of
from stateful_mixers import Dropped, model_with
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.models.stream import ALL
from mixerlab.training.datamodule import Examples
from mixerlab.training.metrics import IGNORE_INDEX
from mixerlab.training.optimizers import AdamW, Muon
from mixerlab.training.population import Population
from mixerlab.training.schedules import WSD
from mixerlab.training.steps import PopulationSteps

VOCAB, LENGTH, WIDTH = 8, 12, 32


class Touched(TorchDispatchMode):
    """Records the storages of all tensors that operations take as input and that no operation has created."""

    def __init__(self):
        super().__init__()
        self.made, self.found = set(), set()
        self.kept = []  # keeps storages alive, so that no address is used twice

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.found |= self._storages((arguments, options)) - self.made
        result = operation(*arguments, **(options or {}))
        self.made |= self._storages(result) - self.found
        return result

    def _storages(self, tree):
        tensors = [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
        self.kept += tensors
        return storages(tensors)


def storages(tensors):
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def model_of(mixer, kind=LanguageModel):
    sizes = (LENGTH, WIDTH) if kind is AutoEncoder else (WIDTH,)
    return kind(VOCAB, *sizes, 2, lambda: mixer_of(mixer, WIDTH))


@pytest.mark.parametrize(
    ("mixer", "kind", "optimizer"),
    [*((mixer, LanguageModel, Muon) for mixer in MIXERS), ("gdn", AutoEncoder, AdamW)],
)
def test_a_step_touches_only_listed_tensors(mixer, kind, optimizer):
    population = Population(lambda: model_of(mixer, kind), [0, 1])
    tokens, rows = torch.randint(VOCAB, (20, LENGTH)), torch.randint(20, (2, 4))
    steps = PopulationSteps(
        population, optimizer(population, [1e-3, 1e-2], WSD(), 10), Examples(tokens, tokens.clone(), ALL), bf16=False
    )
    before = [tensor.clone() for tensor in steps.read_tensors()]
    for step in (steps.train, steps.score):
        with Touched() as touched:
            step(rows)
        assert touched.found <= storages([*steps.written_tensors(), *steps.read_tensors(), rows])
    assert all(map(torch.equal, steps.read_tensors(), before))


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_of_a_batch_have_its_gradient(parts):
    population = Population(lambda: model_of("attn"), [0, 1])
    optimizer = AdamW(population, [1e-3, 1e-2], WSD(), 10)
    tokens, rows = torch.randint(VOCAB, (20, LENGTH)), torch.randint(20, (2, 8))
    targets = tokens.roll(1, dims=1)
    targets[rows[0, :3], 2:] = targets[rows[1, -4:]] = IGNORE_INDEX
    examples = Examples(tokens, targets, ALL)
    (loss, gradient), (own_loss, own_gradient) = (
        PopulationSteps(population, optimizer, examples, bf16=False, accumulate=number)._loss_and_gradient(rows)
        for number in (1, parts)
    )
    torch.testing.assert_close(own_loss, loss)
    assert (own_gradient - gradient).norm() <= 2e-6 * gradient.norm()


def test_dropout_is_on_in_training_and_off_in_scoring():
    population = Population(model_with(Dropped, VOCAB), [0, 1])
    population.compute_in_a_loop()
    tokens, rows = torch.randint(VOCAB, (20, LENGTH)), torch.randint(20, (2, 8))
    optimizer = AdamW(population, [1e-3, 1e-2], WSD(), 10)
    steps = PopulationSteps(population, optimizer, Examples(tokens, tokens.roll(1), ALL), bf16=False)
    (loss, _), (other_loss, _) = (steps._loss_and_gradient(rows) for _ in range(2))
    assert (loss != other_loss).all() and torch.equal(steps.score(rows), steps.score(rows))
