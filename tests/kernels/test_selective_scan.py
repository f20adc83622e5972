"""The selective scan, and the block of Mamba around it, against float64 loops over time steps, from the recurrence."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import BACKENDS, check, check_close, double, draw, run, traced
from formulas import convolution
from torch import Tensor

from mixerlab.kernels.fused import linear
from mixerlab.kernels.selective_scan import selective_scan
from mixerlab.kernels.selective_scan.block import mamba_block
from mixerlab.kernels.short_convolution import short_convolution

NAMES = ("u", "delta", "delta_bias", "A", "B", "C", "D", "z")


def loop(u, delta, delta_bias, A, B, C, D, z) -> Tensor:
    """The recurrence one step at a time; autograd gives the gradients."""
    step = F.softplus(delta + delta_bias)
    h = torch.zeros(u.shape[0], *A.shape, dtype=u.dtype, device=u.device)
    outputs = []
    for t in range(u.shape[1]):
        h = torch.exp(step[:, t, :, None] * A) * h + (step * u)[:, t, :, None] * B[:, t, None, :]
        outputs.append((h * C[:, t, None, :]).sum(-1) + D * u[:, t])
    return torch.stack(outputs, dim=1) * F.silu(z)


def make_inputs(batch, length, channels, state, dtype=torch.float64, device="cpu", seed=0) -> list[Tensor]:
    """Random arguments in the order of `NAMES`; step sizes from 1e-3 to about 3, decays from 1 to e^-40."""
    sequence, states, parameter = (batch, length, channels), (batch, length, state), (channels,)
    u, delta, bias, b, c, d, z = draw(
        sequence, sequence, parameter, states, states, parameter, sequence, dtype=torch.float64, seed=seed
    )
    rates = state * torch.rand(channels, state, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return [t.to(device, dtype) for t in (u, delta, 2 * bias - 3, -rates, b, c, d, z)]


@pytest.mark.parametrize(
    ("length", "state", "dtype", "tolerance"),
    [*((t, 4, torch.float64, 1e-12) for t in (1, 7, 8, 9)), *((65, n, torch.float32, 3e-6) for n in (4, 16, 64))],
)
def test_reference_is_the_recurrence(length, state, dtype, tolerance):
    inputs = make_inputs(2, length, 5, state, dtype)
    check_close(partial(selective_scan, backend="reference"), loop, inputs, tolerance)


@pytest.mark.parametrize("length", [5, 8, 19])
def test_second_derivatives_of_the_reference(length):
    """Also with several saved states that the backward starts from, and under vmap."""

    def second(function, inputs):
        inputs = [t.detach().requires_grad_() for t in inputs]
        gradients = torch.autograd.grad(function(*inputs).square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in gradients), inputs)

    inputs = make_inputs(batch=1, length=length, channels=2, state=3)
    expected = second(loop, inputs)
    together = second(torch.func.vmap(selective_scan), [torch.stack((t, 2 * t)) for t in inputs])
    for name, e, single, stacked in zip(NAMES, expected, second(selective_scan, inputs), together, strict=True):
        torch.testing.assert_close(single, e, rtol=1e-11, atol=1e-11, msg=name)
        torch.testing.assert_close(stacked[0], e, rtol=1e-11, atol=1e-11, msg=name)


triton = partial(selective_scan, backend="triton")


# (batch, T, channels, N). A tile is 4 steps (backward 2) of up to 32 channels; the last ones: odd and large states.
SHAPES = [(2, 1, 33, 4), (1, 17, 33, 4), *((1, length, 3, 4) for length in (63, 64, 65, 127))]
SHAPES += [(1, 9, 5, 16), (1, 9, 2, 11), (1, 5, 9, 64)]
MORE_SHAPES = [(3, 63, 72, 16), (4, 64, 256, 16), (2, 127, 40, 32), (2, 500, 72, 4), (3, 129, 72, 64)]


def check_triton(shape, dtype, tolerance, device) -> None:
    inputs = make_inputs(*shape, torch.float32, device)
    for position in (0, 1, 4, 5, 7):
        inputs[position] = inputs[position].to(dtype)
    check_close(triton, loop, inputs, tolerance)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_triton_is_the_recurrence(device, shape):
    check_triton(shape, torch.float32, 2e-6, device)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", MORE_SHAPES, ids=str)
def test_triton_is_the_recurrence_at_size(device, shape):
    # A state that hardly decays adds up the rounding of 500 exponentials: the gradient of A is 5.5e-6 off.
    check_triton(shape, torch.float32, 1e-5 if shape[1] == 500 else 5e-6, device)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES + MORE_SHAPES, ids=str)
def test_triton_in_bfloat16(device, shape):
    """Results are rounded to bf16, by a relative 2^-8 at most, and so are the states that the backward starts from."""
    check_triton(shape, torch.bfloat16, 2 * 2**-8, device)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_extreme_decays_stay_finite(device, backend):
    """Steps of 100 against rates of -64: each decay underflows to 0, and nothing becomes inf or NaN."""
    inputs = make_inputs(batch=1, length=10, channels=2, state=4, dtype=torch.float32, device=device)
    inputs[1] += 100
    inputs[3] -= 64
    grad = torch.ones_like(inputs[0])
    expected = run(loop, double(inputs), [grad])
    actual = run(lambda *a: selective_scan(*a, backend=backend), inputs, [grad])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-6)


# (batch, T, channels, N, rank, taps)
BLOCKS = [(1, 1, 3, 4, 1, 4), (1, 6, 5, 16, 2, 3), (2, 5, 4, 11, 5, 1)]
BLOCKS += [pytest.param((2, 19, 33, 4, 3, 4), marks=pytest.mark.slow)]


def definition(xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D) -> Tensor:
    """Step by step, from figure 3 and equation 2 of the paper; autograd gives the gradients."""
    x, z = xz.chunk(2, dim=-1)
    u = convolution(x, conv_weight, conv_bias)
    dt, B, C = (u @ x_proj.T).split((dt_proj.shape[1], A_log.shape[1], A_log.shape[1]), dim=-1)
    return loop(u, dt @ dt_proj.T, dt_bias, -A_log.exp(), B, C, D, z)


def block_inputs(batch, length, channels, n, rank, taps, device, seed=0) -> list[Tensor]:
    shapes = (batch, length, 2 * channels), (channels, taps), (channels,), (rank + 2 * n, channels), (channels, rank)
    xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, D = draw(*shapes, (channels,), (channels,), seed=seed)
    rates = n * torch.rand(channels, n, generator=torch.Generator().manual_seed(seed))
    scaled = x_proj * channels**-0.5, dt_proj * rank**-0.5, dt_bias - 3
    return [x.to(device) for x in (xz, conv_weight, conv_bias, *scaled, rates.log(), D)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [*BLOCKS, (1, 7, 3, 4, 2, 6)], ids=str)
def test_block_is_the_definition(device, shape, backend):
    """The parts run one by one for the last shape, which has more taps than the kernel takes."""
    inputs = block_inputs(*shape, device)
    with traced():
        check_close(lambda *a: mamba_block(*a, backend=backend), definition, inputs, 3e-6)


def parts(xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D) -> Tensor:
    x, z = xz.chunk(2, dim=-1)
    u = short_convolution(x, conv_weight, conv_bias)
    dt, B, C = linear(u, x_proj).split((dt_proj.shape[1], A_log.shape[1], A_log.shape[1]), dim=-1)
    return selective_scan(u, linear(dt, dt_proj), dt_bias, -A_log.exp(), B, C, D, z)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4, 64, 256, 16, 8, 4), (3, 129, 72, 16, 8, 4), (2, 500, 40, 32, 3, 4)], ids=str)
def test_block_at_size(device, shape):
    """In bf16 the block is compared with its parts, which round where it rounds.

    Float64 would show those roundings: a slow channel's gradient of A changes by a percent with them.
    """
    inputs = block_inputs(*shape, device)
    check_close(mamba_block, definition, inputs, 1e-5)
    for position in (0, 3, 4):
        inputs[position] = inputs[position].bfloat16()
    check(run(mamba_block, inputs), run(parts, inputs), 4e-3)
