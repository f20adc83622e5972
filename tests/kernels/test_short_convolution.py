"""The short convolution against sums written from its definition, in float64."""

import pytest
import torch
from formulas import convolution
from fused_cases import BACKENDS, check_close, check_replicas, draw
from torch import Tensor

from mixerlab.kernels.short_convolution import short_convolution

# (batch, T, channels, taps); a program takes 64 channels.
SHAPES = [(1, 1, 3, 4), (2, 17, 5, 2), (1, 32, 3, 3), (1, 33, 130, 4), (1, 3, 4, 1)]


def make_inputs(batch, length, channels, taps, device, replicas=()) -> list[Tensor]:
    shapes = (batch, length, channels), (channels, taps), (channels,)
    return draw(*((*replicas, *shape) for shape in shapes), device=device)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_the_definition(device, shape, backend):
    inputs = make_inputs(*shape, device)
    check_close(lambda *a: short_convolution(*a, backend=backend), convolution, inputs, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (3, 500, 256, 4)], ids=str)
def test_triton_in_bfloat16(device, shape):
    """Sums are float32: what remains is the rounding of the results to bf16, a relative 2^-8 at most."""
    x, *parameters = make_inputs(*shape, device)
    inputs = [x.bfloat16(), *parameters]
    check_close(lambda *a: short_convolution(*a, backend="triton"), convolution, inputs, 2**-8)


def test_replicas_under_vmap_equal_single_ones(device):
    """Half of a projection as input (strided), each replica with its own weights and bias."""
    x, *parameters = make_inputs(2, 9, 3, 4, device, replicas=(2,))

    def second_half(x, weight, bias):
        return short_convolution(x.chunk(2, dim=-1)[1], weight, bias, backend="triton")

    check_replicas(second_half, [torch.cat((x, x + 1), dim=-1), *parameters])
