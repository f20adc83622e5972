"""Marks on parameters: what Muon takes as matrices, and rates and decay of their own."""

import pytest
import torch
from torch import nn

from mixerlab.mixers.base import as_matrix, split_rows
from mixerlab.models.language_model import LanguageModel
from mixerlab.training.optimizers import AdamW, Muon
from mixerlab.training.population import Population
from mixerlab.training.schedules import Constant

VOCAB, WIDTH = 8, 16
SIZES = (WIDTH, 8, 8)  # of queries, keys and values, say


class Mixer(nn.Module):
    """`x` times random `[32, 16]` weights, of one layer, of three, or of an `nn.Parameter`; their columns summed up."""

    def __init__(self, form):
        super().__init__()
        with torch.random.fork_rng(devices=()):  # what is drawn behind it is the same for all forms
            self.make(form, torch.randn(sum(SIZES), WIDTH))

    def make(self, form, weight):
        if form == "three":
            self.parts = nn.ModuleList(nn.Linear(WIDTH, size, bias=False) for size in SIZES)
            for layer, rows in zip(self.parts, weight.split(SIZES), strict=True):
                layer.weight.data = rows.clone()
        elif form in ("stack", "parameter"):
            self.weight = nn.Parameter(weight.view(2, WIDTH, WIDTH) if form == "stack" else weight)
            as_matrix(self.weight)
        else:
            self.layer = nn.Linear(WIDTH, sum(SIZES), bias=False)
            self.layer.weight.data = weight
            split_rows(self.layer.weight, SIZES if form == "split" else {"whole": (32,), "halves": (16, 16)}[form])

    def forward(self, x):
        weights = [parameter.reshape(-1, WIDTH) for parameter in self.parameters()]
        return (x @ torch.cat(weights).T).cumsum(1).tanh().view(*x.shape[:2], 2, WIDTH).sum(2)


def weights_after_two_steps(form):
    population = Population(lambda: LanguageModel(VOCAB, WIDTH, 1, lambda: Mixer(form)), (0, 1))
    optimizer = Muon(population, [1e-2, 3e-3], Constant(), 10)
    tokens = torch.randint(VOCAB, (2, 3, 7), generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        loss = population(tokens).logsumexp(-1).mean()
        (population.parameters_by_replica.grad,) = torch.autograd.grad(loss, population.parameters_by_replica)
        optimizer.step()
    named = population.parameters_by_name()
    return torch.cat([named[name].detach().flatten(1) for name in sorted(named) if ".mixer." in name], 1)


@pytest.mark.parametrize(("marked", "plain"), [("split", "three"), ("parameter", "whole"), ("stack", "halves")])
def test_muon_treats_marked_parts_as_matrices_of_their_own(marked, plain):
    torch.testing.assert_close(*map(weights_after_two_steps, (marked, plain)), rtol=1e-4, atol=1e-6)


def test_sizes_must_add_up():
    with pytest.raises(ValueError, match=r"the sizes \[16, 8\] must add up to the 32 rows"):
        split_rows(torch.empty(32, 16), (16, 8))


class Rated(nn.Module):
    """Three gains: one as usual, one without decay as in mamba, one with a rate and without decay as in S4."""

    def __init__(self):
        super().__init__()
        self.usual, self.undecayed, self.rated = (nn.Parameter(torch.ones(WIDTH)) for _ in range(3))
        self.undecayed._no_weight_decay = True
        self.rated._optim = {"lr": 1e-3, "weight_decay": 0.0}

    def forward(self, x):
        return x.cumsum(1) * self.usual * self.undecayed * self.rated


def test_rates_and_decay_of_public_code_are_honoured_for_each_replica():
    """The first step of Adam moves each element by its rate."""
    population = Population(lambda: LanguageModel(VOCAB, WIDTH, 1, Rated), (0, 0, 0))
    optimizer = AdamW(population, [0.1, 0.05, 0.01], Constant(), 10, weight_decay=0.5)
    population.keep([0, 2])
    optimizer.keep([0, 2])
    population.parameters_by_replica.grad = torch.ones_like(population.parameters_by_replica)
    optimizer.step()
    moved = {name.rpartition(".")[2]: 1 - value for name, value in population.parameters_by_name().items()}
    for name, wanted in {"usual": (0.15, 0.015), "undecayed": (0.1, 0.01), "rated": (1e-3, 1e-3)}.items():
        expected = torch.tensor(wanted)[:, None].expand(-1, WIDTH)
        torch.testing.assert_close(moved[name].detach(), expected, rtol=1e-3, atol=1e-6)
