"""Tensors and layers that PyTorch does not find in a mixer: which are named, and which end a run."""

import pytest
import torch
from every_mixer import MIXERS, mixer_of
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from mixerlab.checks.strays import strays
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


def set_in_installed(mixer):
    mixer.rnn = nn.GRU(WIDTH, WIDTH)
    mixer.rnn.cache = torch.ones(3)


def trained_in_installed(mixer):
    mixer.rnn = nn.GRU(WIDTH, WIDTH)
    mixer.rnn.extra = [torch.ones(3, requires_grad=True)]


@pytest.mark.parametrize(
    ("fill", "names", "is_lost"),
    [
        (lambda m: setattr(m, "outs", [nn.Linear(WIDTH, 1)]), ["outs[0].weight", "outs[0].bias"], True),
        (
            lambda m: setattr(m, "outs", ({"a": [nn.BatchNorm1d(1, affine=False)]},)),
            ["outs[0]['a'][0].running_mean"],
            True,
        ),
        (lambda m: setattr(m, "tables", {"decay": torch.randn(WIDTH)}), ["tables['decay']"], True),
        (lambda m: setattr(m, "gates", [nn.Parameter(torch.ones(1))]), ["gates[0]"], True),
        (lambda m: setattr(m, "table", torch.randn(WIDTH)), ["table"], True),
        (lambda m: setattr(m, "inner", Own()), ["inner.table"], True),
        (set_in_installed, ["rnn.cache"], False),
        (trained_in_installed, ["rnn.extra[0]"], True),
    ],
)
def test_strays_are_named(fill, names, is_lost):
    found = list(strays(Keeps(fill)))
    assert [stray.name for stray in found][: len(names)] == names
    assert {stray.is_lost for stray in found} == {is_lost}


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
        lambda m: setattr(m, "attention", nn.MultiheadAttention(WIDTH, 2)),
        lambda m: setattr(m, "layer", nn.TransformerEncoderLayer(WIDTH, 2)),
        lambda m: setattr(m, "normed", weight_norm(nn.Linear(WIDTH, WIDTH))),
    ],
    ids=["named again", "no tensors", "LSTM", "MultiheadAttention", "TransformerEncoderLayer", "weight_norm"],
)
def test_what_is_registered_is_no_stray(fill):
    assert not list(strays(Keeps(fill)))


@pytest.mark.parametrize("name", MIXERS)
def test_our_mixers_have_none(name):
    assert not list(strays(mixer_of(name, 32)))
