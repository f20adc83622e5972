"""The base class of mixers that project, mix and project: its product and its biases."""

import pytest
import torch
from torch import nn

from mixerlab.mixers.projected import ProjectedMixer

WIDTH, LENGTH = 16, 7


class Gated(ProjectedMixer):
    """Three projections of different widths, of which two have biases; `mix` adds one of these itself."""

    input_projections = ("value_proj", "number_proj", "gate_proj")
    output_projection = "last"
    biases_in_mix = frozenset({"gate_proj"})

    def __init__(self, bias=True):
        super().__init__()
        self.gate_proj = nn.Linear(WIDTH, 5, bias=bias)
        self.number_proj = nn.Linear(WIDTH, 2, bias=False)
        self.value_proj = nn.Linear(WIDTH, 5, bias=bias)
        self.last = nn.Linear(5, WIDTH, bias=bias)
        if bias:
            for layer in (self.gate_proj, self.value_proj, self.last):
                nn.init.normal_(layer.bias)

    def mix(self, projected):
        self.received = projected.detach()
        value, number, gate = projected[..., :12].split((5, 2, 5), dim=-1)
        gate = gate if self.gate_proj.bias is None else gate + self.gate_proj.bias
        return value * gate.sigmoid() + number.sum(-1, keepdim=True)


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_its_linear_layers(bias):
    mixer = Gated(bias).double()
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    number = mixer.number_proj(x).sum(-1, keepdim=True)
    expected = mixer.last(mixer.value_proj(x) * mixer.gate_proj(x).sigmoid() + number)
    actual = mixer(x)
    torch.testing.assert_close(actual, expected)
    weight, wanted = torch.randn_like(actual), [x, *mixer.parameters()]
    gradients = (torch.autograd.grad((y * weight).sum(), wanted) for y in (actual, expected))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
