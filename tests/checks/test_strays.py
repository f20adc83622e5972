"""Tensors and layers that PyTorch does not find in a mixer: which are named, and which end a run."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from mixerlab.checks.construction import strays
from mixerlab.mixers.base import SequenceMixer

WIDTH = 8


class Own(nn.Module):
    """A layer of the user's own, with a random table."""

    def __init__(self):
        super().__init__()
        self.table = torch.randn(WIDTH)


class Keeps(SequenceMixer):
    """Calls `fill` with itself."""

    def __init__(self, fill):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        fill(self)


@pytest.mark.parametrize(
    ("fill", "names"),
    [
        (lambda m: setattr(m, "outs", [nn.Linear(WIDTH, 1)]), ["outs[0].weight", "outs[0].bias"]),
        (lambda m: setattr(m, "tables", {"decay": torch.randn(WIDTH)}), ["tables['decay']"]),
        (lambda m: setattr(m, "gates", [nn.Parameter(torch.ones(1))]), ["gates[0]"]),
        (lambda m: setattr(m, "table", torch.randn(WIDTH)), ["table"]),
        (lambda m: setattr(m, "inner", Own()), ["inner.table"]),
    ],
)
def test_strays_are_named(fill, names):
    found = list(strays(lambda: Keeps(fill)))
    assert [stray.name for stray in found][: len(names)] == names
    assert all(stray.is_lost for stray in found)


def in_a_list_again(mixer):
    mixer.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH)])
    mixer.again = [*mixer.layers, mixer.linear.weight]
    mixer.again.append(mixer.again)


@pytest.mark.parametrize(
    "fill",
    [
        in_a_list_again,
        lambda m: setattr(m, "activations", [nn.SiLU(), nn.Dropout(0.1)]),
        lambda m: setattr(m, "rnn", nn.LSTM(WIDTH, WIDTH, num_layers=2)),
        lambda m: setattr(m, "normed", weight_norm(nn.Linear(WIDTH, WIDTH))),
    ],
)
def test_what_is_registered_is_no_stray(fill):
    assert not list(strays(lambda: Keeps(fill)))
