"""Marks on parameters: sizes that add up, and rates and decay of their own; `test_optimizers` has those for Muon."""

import pytest
import torch
from torch import nn

from mixerlab.mixers.base import split_rows
from mixerlab.models.language_model import LanguageModel
from mixerlab.training.optimizers import AdamW
from mixerlab.training.population import Population
from mixerlab.training.schedules import Constant

VOCAB, WIDTH = 8, 16


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
