"""Mamba's block as one operator against its formula in float64."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from gradients import assert_close, gradient_like, output_and_gradients
from torch import Tensor

from mixerlab.kernels.fused import linear
from mixerlab.kernels.selective_scan import selective_scan
from mixerlab.kernels.selective_scan.block import mamba_block
from mixerlab.kernels.short_convolution import short_convolution

NAMES = ("xz", "conv_weight", "conv_bias", "x_proj", "dt_proj", "dt_bias", "A_log", "D")
assert_matches = partial(assert_close, names=NAMES)
# (batch, T, channels, N, rank, taps)
SHAPES = [(1, 1, 3, 4, 1, 4), (2, 19, 33, 4, 3, 4), (1, 6, 5, 16, 2, 3), (2, 5, 4, 11, 5, 1)]


def definition(xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D) -> Tensor:
    """Step by step, from figure 3 and equation 2 of the paper; autograd gives the gradients."""
    x, z = xz.chunk(2, dim=-1)
    taps = conv_weight.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    u = F.silu(conv_bias + sum(conv_weight[:, k] * padded[:, k : k + x.shape[1]] for k in range(taps)))
    dt, B, C = (u @ x_proj.T).split((dt_proj.shape[1], A_log.shape[1], A_log.shape[1]), dim=-1)
    A = -A_log.exp()
    step = F.softplus(dt @ dt_proj.T + dt_bias)
    h = torch.zeros(x.shape[0], *A.shape, dtype=x.dtype, device=x.device)
    outputs = []
    for t in range(x.shape[1]):
        h = torch.exp(step[:, t, :, None] * A) * h + (step * u)[:, t, :, None] * B[:, t, None, :]
        outputs.append((h * C[:, t, None, :]).sum(-1) + D * u[:, t])
    return torch.stack(outputs, dim=1) * F.silu(z)


def make_inputs(batch, length, channels, n, rank, taps, device, seed=0) -> list[Tensor]:
    """Random arguments in the order of `NAMES`."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (scale * torch.randn(*shape, generator=generator)).to(device)

    return [
        normal(batch, length, 2 * channels),
        normal(channels, taps),
        normal(channels),
        normal(rank + 2 * n, channels, scale=channels**-0.5),
        normal(channels, rank, scale=rank**-0.5),
        normal(channels) - 3,
        (n * torch.rand(channels, n, generator=generator)).log().to(device),
        normal(channels),
    ]


def grad_like_output(xz: Tensor) -> Tensor:
    return gradient_like(xz.chunk(2, dim=-1)[0])


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_is_the_definition(device, shape, backend):
    inputs = make_inputs(*shape, device)
    grad = grad_like_output(inputs[0])
    expected = output_and_gradients(definition, [t.double() for t in inputs], grad)
    actual = output_and_gradients(lambda *a: mamba_block(*a, backend=backend), inputs, grad)
    assert_matches(actual, expected, 3e-6)


def parts(xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D) -> Tensor:
    """The block from separate operators, which have their own tests."""
    x, z = xz.chunk(2, dim=-1)
    u = short_convolution(x, conv_weight, conv_bias)
    dt, B, C = linear(u, x_proj).split((dt_proj.shape[1], A_log.shape[1], A_log.shape[1]), dim=-1)
    return selective_scan(u, linear(dt, dt_proj), dt_bias, -A_log.exp(), B, C, D, z)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(4, 64, 256, 16, 8, 4), (3, 129, 72, 16, 8, 4), (2, 500, 40, 32, 3, 4)], ids=str)
def test_at_size(device, shape):
    """In bf16 the block is compared with its parts, which round where it rounds.

    Float64 would show those roundings: a slow channel's gradient of A changes by a percent with them.
    """
    inputs = make_inputs(*shape, device)
    grad = grad_like_output(inputs[0])
    expected = output_and_gradients(definition, [t.double() for t in inputs], grad)
    assert_matches(output_and_gradients(mamba_block, inputs, grad), expected, 1e-5)
    for position in (0, 3, 4):
        inputs[position] = inputs[position].bfloat16()
    expected = output_and_gradients(parts, inputs, grad)
    assert_matches(output_and_gradients(mamba_block, inputs, grad), expected, 4e-3)


def test_more_taps_than_the_kernel_takes(device):
    """The parts run one by one."""
    inputs = make_inputs(1, 7, 3, 4, 2, 6, device)
    grad = grad_like_output(inputs[0])
    expected = output_and_gradients(definition, [t.double() for t in inputs], grad)
    actual = output_and_gradients(lambda *a: mamba_block(*a, backend="triton"), inputs, grad)
    assert_matches(actual, expected, 3e-6)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_replicas_under_vmap_equal_single_ones(device, backend):
    """Each replica has its own parameters and input. The reference is in float64: its float32 products may differ."""
    stacked = [torch.stack(t) for t in zip(*(make_inputs(2, 5, 3, 4, 2, 4, device, s) for s in range(2)), strict=True)]
    if backend == "reference":
        stacked = [t.double() for t in stacked]
    grad = torch.randn(2, 2, 5, 3, device=device)

    def run(*args):
        return mamba_block(*args, backend=backend)

    together = output_and_gradients(torch.func.vmap(run), stacked, grad)
    for r in range(2):
        single = output_and_gradients(run, [t[r] for t in stacked], grad[r])
        assert_matches([t[r] for t in together], single, 1e-5)


@pytest.mark.slow
def test_parameters_may_be_slices_of_one_tensor(device):
    """As the parameters of a population are. The kernels read them in place."""
    xz, *parameters = (
        torch.stack(t) for t in zip(*(make_inputs(2, 5, 3, 4, 2, 4, device, s) for s in range(2)), strict=True)
    )
    rows = torch.cat([t.flatten(1) for t in parameters], dim=1)
    parts = rows.split([t[0].numel() for t in parameters], dim=1)
    slices = [part.unflatten(1, t.shape[1:]) for part, t in zip(parts, parameters, strict=True)]
    assert not any(t.is_contiguous() for t in slices)
    grad = torch.randn(2, 2, 5, 3, device=device)

    def run(*args):
        return mamba_block(*args, backend="triton")

    expected = output_and_gradients(torch.func.vmap(run), [xz, *parameters], grad)
    actual = output_and_gradients(torch.func.vmap(run), [xz, *slices], grad)
    assert_matches(actual, expected, 3e-6)
