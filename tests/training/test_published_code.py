"""Habits of published mixers: one module under two names, one weight in two layers, frozen and unused parameters."""

import pytest
import torch
from stateful_mixers import model_with
from test_compiled import TWO, Backend
from tiny_training import VOCAB, WIDTH, fit
from torch import nn

from mixerlab.mixers.base import SequenceMixer
from mixerlab.training import compiled
from mixerlab.training.compiled import compile_mixers
from mixerlab.training.execution import choose_execution
from mixerlab.training.population import Population, seeded
from mixerlab.training.weights import model_state, put_in


class Sine(nn.Module):
    def __init__(self):
        super().__init__()
        self.frequency = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        return torch.sin(self.frequency * x)


class TwoNames(SequenceMixer):
    """One activation twice in a Sequential, as in Hyena's filters, and once more by a name of its own."""

    def __init__(self):
        super().__init__()
        self.sine = Sine()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), self.sine, nn.Linear(WIDTH, WIDTH), self.sine)

    def forward(self, x):
        return self.net(x.cumsum(1)) + self.sine(x)


class OneWeight(SequenceMixer):
    """Two layers with one weight, as where queries and keys are shared."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k.weight = self.q.weight

    def forward(self, x):
        return torch.tanh(self.q(x)) * self.k(x).cumsum(1)


class Fixed(SequenceMixer):
    """A frozen layer and parameter, tensors in attributes, and a parameter that forward does not use."""

    shift = None  # a default

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.scale = nn.Parameter(torch.rand(WIDTH), requires_grad=False)
        self.order, self.shift = torch.arange(WIDTH).flip(0), torch.ones(WIDTH)
        self.out, self.spare = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(3, 5))

    def forward(self, x):
        return self.out((self.features(x) * self.scale + self.shift)[..., self.order].cumsum(1))


@pytest.mark.parametrize("execution", ["vmap", "loop", "compiled"])
@pytest.mark.parametrize("mixer", [TwoNames, OneWeight, Fixed])
def test_losses_and_gradients_are_those_of_the_model_alone(mixer, execution, monkeypatch):
    # What is frozen is random, and a mixer is compiled only if its replicas share it.
    seeds = (1, 1) if execution == "compiled" else (0, 1)
    build = model_with(mixer, linear_std=0.3, tie_embeddings=mixer is OneWeight)
    population = Population(build, seeds)
    own = {name: tensor for name, tensor in population.model.named_parameters(remove_duplicate=False)}
    if execution == "loop":
        population.compute_in_a_loop()
    if execution == "compiled":
        monkeypatch.setattr(compiled, "_functions", {})
        monkeypatch.setattr(compiled, "BACKEND", Backend())
        compile_mixers(population, True, dtype=torch.float32, report=lambda line: None)
        assert all("forward" in vars(block.mixer) for block in population.model.blocks)
    tokens = torch.randint(VOCAB, (2, 3, 7), generator=torch.Generator().manual_seed(0))
    losses = population(tokens).square().mean(dim=(1, 2, 3))
    (gradient,) = torch.autograd.grad(losses.sum(), population.parameters_by_replica)
    for row, seed in enumerate(seeds):
        with seeded(seed):
            alone = build()
        loss = alone(tokens[row]).square().mean()
        loss.backward()
        torch.testing.assert_close(losses[row], loss)
        for slot in population.layout.slots:
            wanted = alone.get_parameter(slot.name).grad
            found = gradient[row, slot.start : slot.stop].view(slot.shape)
            torch.testing.assert_close(found, torch.zeros(slot.shape) if wanted is None else wanted)
    for name, tensor in population.model.named_parameters(remove_duplicate=False):
        assert tensor is own[name]


def test_what_is_frozen_stays_and_is_loaded_and_what_is_unused_is_named(tmp_path):
    result = fit(TWO, tmp_path, build=model_with(Fixed), epochs=1, keep_weights="official")
    assert result.notes == [
        "30 parameters get no gradient, in blocks.*.mixer.spare: forward does not use them at this length, or cuts them"
        " off with detach, torch.no_grad or NumPy"
    ]
    for (_, seed), kept in zip(TWO, result.weights, strict=True):
        with seeded(seed):
            start = model_with(Fixed)()
        loaded = model_with(Fixed)()
        put_in(loaded, kept["official"])
        for name, parameter in loaded.named_parameters():
            is_fixed = not parameter.requires_grad or name.endswith("spare")
            assert torch.equal(parameter, start.get_parameter(name)) == is_fixed or name.endswith("bias"), name


class OneFrozenWeight(OneWeight):
    def __init__(self):
        super().__init__()
        self.q.weight.requires_grad_(False)
        self.register_buffer("one", torch.ones(WIDTH))
        self.register_buffer("other", self.one)


@pytest.mark.parametrize("mixer", [OneWeight, OneFrozenWeight])
def test_a_loaded_model_shares_as_it_did(mixer):
    population = Population(model_with(mixer), (0,))
    population._apply(torch.clone)  # as when it moves to a GPU
    state = model_state(population, [tensor[0] for tensor in population.learned()])
    assert ("blocks.0.mixer.k.weight" in state) == (mixer is OneFrozenWeight)
    loaded = model_with(mixer)()
    put_in(loaded, state)
    assert loaded.blocks[0].mixer.k.weight is loaded.blocks[0].mixer.q.weight
    tokens = torch.randint(VOCAB, (1, 3, 7))
    torch.testing.assert_close(loaded(tokens[0]), population(tokens)[0])


class CachesAngles(SequenceMixer):
    """Rotates as rotary-embedding-torch does: a buffer has the angles, and a number says for how many tokens."""

    def __init__(self):
        super().__init__()
        self.speed = nn.Parameter(torch.rand(WIDTH), requires_grad=False)
        self.register_buffer("angles", torch.zeros(64, WIDTH), persistent=False)
        self.known, self.out = 0, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        length = x.shape[1]
        if length > self.known:
            self.angles[:length] = torch.arange(length)[:, None] * self.speed
            self.known = length
        return self.out((x * self.angles[:length].cos()).cumsum(1))


@pytest.mark.parametrize("execution", ["vmap", "loop"])
def test_a_table_that_forward_caches_in_a_buffer_is_right_in_each_call(execution):
    population = Population(model_with(CachesAngles), (0, 1))
    tokens = torch.randint(VOCAB, (2, 3, 7))
    choose_execution(population, execution, tokens, slice(None), bf16=False)
    for length in (7, 3, 5, 7):
        for training in (True, False):
            population.model.train(training)
            logits = population(tokens[:, :, :length])
            for row, seed in enumerate((0, 1)):
                with seeded(seed):
                    alone = model_with(CachesAngles)()
                torch.testing.assert_close(logits[row], alone(tokens[row, :, :length]))
