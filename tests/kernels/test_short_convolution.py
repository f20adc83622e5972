"""The short convolution against sums written from its definition, in float64."""

from functools import partial

import pytest
import torch
from gradients import assert_close, output_and_gradients
from torch import Tensor

from mixerlab.kernels.short_convolution import short_convolution

assert_matches = partial(assert_close, names=("x", "weight", "bias"))
# (batch, T, channels, taps); a program takes 64 channels.
SHAPES = [(1, 1, 3, 4), (2, 17, 5, 2), (1, 32, 3, 3), (1, 33, 130, 4), (1, 3, 4, 1)]


def definition(x, weight, bias) -> Tensor:
    taps = weight.shape[1]
    padded = torch.cat((x.new_zeros(x.shape[0], taps - 1, x.shape[2]), x), dim=1)
    total = bias + sum(weight[:, k] * padded[:, k : k + x.shape[1]] for k in range(taps))
    return total * torch.sigmoid(total)


def make_inputs(batch, length, channels, taps, device, seed=0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, length, channels), (channels, taps), (channels,))
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_the_definition(device, shape, backend):
    inputs = make_inputs(*shape, device)
    grad = torch.randn_like(inputs[0])
    expected = output_and_gradients(definition, [t.double() for t in inputs], grad)
    actual = output_and_gradients(lambda *a: short_convolution(*a, backend=backend), inputs, grad)
    assert_matches(actual, expected, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (3, 500, 256, 4)], ids=str)
def test_triton_in_bfloat16(device, shape):
    """Sums are float32: what remains is the rounding of the results to bf16, a relative 2^-8 at most."""
    inputs = make_inputs(*shape, device)
    inputs[0] = inputs[0].bfloat16()
    grad = torch.randn_like(inputs[0])
    expected = output_and_gradients(definition, [t.double() for t in inputs], grad)
    actual = output_and_gradients(lambda *a: short_convolution(*a, backend="triton"), inputs, grad)
    assert_matches(actual, expected, 2**-8)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_replicas_under_vmap_equal_single_ones(device, backend):
    """Half of a projection as input (strided), each replica with its own weights and bias."""
    stacked = [torch.stack(t) for t in zip(*(make_inputs(2, 9, 3, 4, device, s) for s in range(3)), strict=True)]
    stacked[0] = torch.cat((stacked[0], stacked[0] + 1), dim=-1)
    grad = torch.randn(3, 2, 9, 3, device=device)

    def second_half(x, weight, bias):
        return short_convolution(x.chunk(2, dim=-1)[1], weight, bias, backend=backend)

    together = output_and_gradients(torch.func.vmap(second_half), stacked, grad)
    for r in range(3):
        single = output_and_gradients(second_half, [t[r] for t in stacked], grad[r])
        assert_matches([t[r] for t in together], single, 1e-6)


def test_weights_may_be_columns_of_a_wider_matrix(device):
    x, weight, bias = make_inputs(2, 9, 3, 4, device)
    grad = torch.randn_like(x)
    expected = output_and_gradients(definition, [t.double() for t in (x, weight, bias)], grad)
    columns = torch.cat((weight, weight), dim=1)[:, :4]
    actual = output_and_gradients(lambda *a: short_convolution(*a, backend="triton"), [x, columns, bias], grad)
    assert_matches(actual, expected, 1e-6)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_no_bias_is_a_bias_of_zero(device, backend):
    x, weight, bias = make_inputs(2, 5, 3, 4, device)
    with_zeros = short_convolution(x, weight, torch.zeros_like(bias), backend=backend)
    assert torch.equal(short_convolution(x, weight, backend=backend), with_zeros)
