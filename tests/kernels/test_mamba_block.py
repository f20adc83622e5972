"""Mamba's block as one operator against its formula in float64."""

import pytest
import torch
from formulas import convolution
from fused_cases import BACKENDS, check, check_close, check_replicas, run, traced
from recurrences import selective_loop
from torch import Tensor

from mixerlab.kernels.fused import linear
from mixerlab.kernels.selective_scan import selective_scan
from mixerlab.kernels.selective_scan.block import mamba_block
from mixerlab.kernels.short_convolution import short_convolution

# (batch, T, channels, N, rank, taps)
SHAPES = [(1, 1, 3, 4, 1, 4), (1, 6, 5, 16, 2, 3), (2, 5, 4, 11, 5, 1)]
SHAPES += [pytest.param((2, 19, 33, 4, 3, 4), marks=pytest.mark.slow)]


def definition(xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D) -> Tensor:
    """Step by step, from figure 3 and equation 2 of the paper; autograd gives the gradients."""
    x, z = xz.chunk(2, dim=-1)
    u = convolution(x, conv_weight, conv_bias)
    dt, B, C = (u @ x_proj.T).split((dt_proj.shape[1], A_log.shape[1], A_log.shape[1]), dim=-1)
    return selective_loop(u, dt @ dt_proj.T, dt_bias, -A_log.exp(), B, C, D, z)


def make_inputs(batch, length, channels, n, rank, taps, device, seed=0) -> list[Tensor]:
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [*SHAPES, (1, 7, 3, 4, 2, 6)], ids=str)
def test_is_the_definition(device, shape, backend):
    """The parts run one by one for the last shape, which has more taps than the kernel takes."""
    inputs = make_inputs(*shape, device)
    with traced():
        check_close(lambda *a: mamba_block(*a, backend=backend), definition, inputs, 3e-6)


def parts(xz, conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D) -> Tensor:
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
    check_close(mamba_block, definition, inputs, 1e-5)
    for position in (0, 3, 4):
        inputs[position] = inputs[position].bfloat16()
    check(run(mamba_block, inputs), run(parts, inputs), 4e-3)


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=pytest.mark.slow)])
def test_replicas_under_vmap_equal_single_ones(device, backend):
    replicas = (make_inputs(2, 5, 3, 4, 2, 4, device, seed) for seed in range(2))
    stacked = [torch.stack(tensors) for tensors in zip(*replicas, strict=True)]
    check_replicas(lambda *a: mamba_block(*a, backend=backend), stacked, tolerance=1e-5)
