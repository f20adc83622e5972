"""A step changes only the tensors that `PopulationSteps` lists, which capturing it puts back."""

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
    """Of the storages that operations take as input and that no operation has created, what is in them at first."""

    def __init__(self):
        super().__init__()
        self.made, self.found = set(), {}
        self.kept = []  # keeps storages alive, so that no address is used twice

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        for tensor in tensors_in((arguments, options)):
            if storage_of(tensor) not in self.made | self.found.keys():
                whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                self.found[storage_of(tensor)] = whole, whole.clone()
        result = operation(*arguments, **(options or {}))
        self.kept += tensors_in(result)
        self.made |= set(map(storage_of, tensors_in(result))) - self.found.keys()
        return result

    def changed(self):
        return {storage for storage, (whole, before) in self.found.items() if not torch.equal(whole, before)}


def tensors_in(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def storage_of(tensor):
    return tensor.untyped_storage()._cdata


def model_of(mixer, kind=LanguageModel):
    sizes = (LENGTH, WIDTH) if kind is AutoEncoder else (WIDTH,)
    return kind(VOCAB, *sizes, 2, lambda: mixer_of(mixer, WIDTH))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("mixer", "kind", "optimizer"),
    [("gdn", AutoEncoder, AdamW), *((mixer, LanguageModel, Muon) for mixer in MIXERS)],
)
def test_a_step_changes_only_listed_tensors(mixer, kind, optimizer):
    population = Population(lambda: model_of(mixer, kind), [0, 1])
    tokens, rows = torch.randint(VOCAB, (20, LENGTH)), torch.randint(20, (2, 4))
    steps = PopulationSteps(
        population, optimizer(population, [1e-3, 1e-2], WSD(), 10), Examples(tokens, tokens.clone(), ALL), bf16=False
    )
    listed = {storage_of(tensor) for tensor in steps.written_tensors()}
    with Touched() as trained:
        steps.train(rows)
    assert storage_of(population.parameters_by_replica) in trained.changed() <= listed
    with Touched() as scored:
        steps.score(rows)
    assert not scored.changed()


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
