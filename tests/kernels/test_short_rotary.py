"""Heads that the kernels of short sequences norm and rotate themselves, against PyTorch's in float64."""

import pytest
import torch
import torch.nn.functional as F

from mixerlab.kernels.fused.heads import rotary_heads
from mixerlab.kernels.parallax import parallax_attention
from mixerlab.kernels.parallax.projected import rotary_parallax
from mixerlab.kernels.softmax_attention import rotary_attention

HEADS, REPLICAS, BATCH, EPS = 2, 2, 2, 1e-5
triton = pytest.importorskip("triton")


def kernels(packed, frequency, gains, parts, rotate_rho):
    """The operators of one replica, whatever the device."""
    from mixerlab.kernels.parallax.projected.operator import short
    from mixerlab.kernels.softmax_attention.operator import short_rotary_attention

    gains = None if gains is None else gains[None]
    if parts == 3:
        return short_rotary_attention(packed, frequency[None], gains, EPS, HEADS)
    return short(packed, frequency[None], gains, EPS, HEADS, rotate_rho)


def exact(packed, frequency, gains, parts, rotate_rho):
    of_parts = None if gains is None else (gains[0], gains[1], None, *gains[2:])
    rotated = (True, True, False, rotate_rho)[:parts]
    q, k, v, *rho = rotary_heads(packed, HEADS, frequency, rotated, of_parts, EPS, backend="reference")
    if rho:
        return parallax_attention(q, rho[0], k, v, backend="reference")
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True).transpose(1, 2)


def drawn(parts, length, dim, device, dtype):
    rng = torch.Generator().manual_seed(length)
    packed = torch.randn(REPLICAS, BATCH, length, parts * HEADS * dim, generator=rng)
    gains = 0.5 + torch.rand(REPLICAS, parts - 1, dim, generator=rng)
    weights = torch.randn(REPLICAS, BATCH, length, HEADS, dim, generator=rng)
    frequency = 10_000.0 ** -(torch.arange(dim // 2) / (dim // 2))
    return packed.to(device, dtype), gains.to(device), weights.to(device, dtype), frequency.to(device)


def check(function, parts, length, dim, device, dtype, normed, rotate_rho, tolerance):
    packed, gains, weights, frequency = drawn(parts, length, dim, device, dtype)
    given = [packed, gains] if normed else [packed]

    def of_each(function, leaves):
        one = lambda packed, gains=None: function(packed, frequency, gains, parts, rotate_rho)  # noqa: E731
        out = torch.func.vmap(one)(*leaves) if function is not exact else torch.stack(list(map(one, *leaves)))
        return out, *torch.autograd.grad(out, leaves, weights.to(out.dtype))

    found = of_each(function, [x.clone().requires_grad_() for x in given])
    wanted = of_each(exact, [x.double().requires_grad_() for x in given])
    for name, got, want in zip(("output", "packed", "gains"), found, wanted, strict=False):
        error = ((got.double() - want).norm() / want.norm()).item()
        assert error < tolerance, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("parts", "rotate_rho"), [(3, False), (4, False), (4, True)])
@pytest.mark.parametrize(("length", "dim"), [(2, 16), (64, 32), (100, 16)])
def test_the_operators_equal_the_formula(device, length, dim, parts, rotate_rho, normed):
    check(kernels, parts, length, dim, device, torch.float32, normed, rotate_rho, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("parts", "rotate_rho"), [(3, False), (4, False), (4, True)])
@pytest.mark.parametrize("dim", [16, 32, 64])
@pytest.mark.parametrize("length", [2, 63, 64, 65, 128])
def test_in_bfloat16(length, dim, parts, rotate_rho, normed):
    """Through the functions that the mixers call."""

    def called(packed, frequency, gains, parts, rotate_rho):
        gains = () if gains is None else gains.unbind(0)
        if parts == 3:
            return rotary_attention(packed, HEADS, frequency, gains, EPS)
        return rotary_parallax(packed, HEADS, frequency, gains, EPS, rotate_rho=rotate_rho)

    check(called, parts, length, dim, "cuda", torch.bfloat16, normed, rotate_rho, 1e-2)


def test_columns_behind_the_heads_change_nothing():
    packed, *_, frequency = drawn(3, 20, 16, "cpu", torch.float32)
    padded = F.pad(packed[0], (0, 32))
    plain, wide = (rotary_attention(x, HEADS, frequency) for x in (packed[0], padded))
    torch.testing.assert_close(wide, plain, rtol=0, atol=0)
