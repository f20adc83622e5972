"""Tensors that 32-bit offsets cannot address are copied or refused. Meta tensors have such sizes without memory."""

from importlib import import_module

import pytest
import torch

from mixerlab.kernels.common.addressing import addressable, unit_stride
from mixerlab.kernels.fused import Form, Part, split_heads
from mixerlab.kernels.parallax.triton_tiles import for_copy_engine, pair_descriptor, strides_of
from mixerlab.kernels.selective_scan import selective_scan
from mixerlab.kernels.selective_scan.block import mamba_block
from mixerlab.kernels.short_convolution import short_convolution
from mixerlab.kernels.short_convolution.heads import convolve_heads

LENGTH, WIDTH = 2**12, 2**10  # of one sequence: 2^22 elements


def meta(*shape):
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    "x",
    [
        meta(1024, LENGTH, WIDTH),  # sequences may lie anywhere
        meta(8, LENGTH, 2 * WIDTH)[..., WIDTH:],
        meta(LENGTH, 511, WIDTH).transpose(0, 1),
        meta(1, 1, 1).expand(4, LENGTH, 1),
        meta(1, 2**31 // WIDTH, WIDTH),  # the last offset is 2^31 - 1
        meta(0, LENGTH, WIDTH),
    ],
    ids=lambda x: f"{tuple(x.shape)} by {x.stride()}",
)
def test_what_32_bits_reach_stays_as_it_lies(x):
    assert addressable(x) is x


@pytest.mark.parametrize(
    "x",
    [
        meta(LENGTH, 513, WIDTH).transpose(0, 1),  # time first
        meta(LENGTH, 513, 8, WIDTH // 8).transpose(0, 1),
        meta(2, 16, 2**25, 8)[:, :, ::2, :].movedim(1, 2)[..., :4],  # heads far apart
        meta(2, WIDTH, LENGTH).mT,
    ],
    ids=lambda x: f"{tuple(x.shape)} by {x.stride()}",
)
def test_others_are_copied(x):
    copy = addressable(x)
    assert copy is not x and copy.is_contiguous() and copy.shape == x.shape


@pytest.mark.parametrize("x", [meta(3, 2**21 + 1, WIDTH), meta(1, WIDTH).expand(2**21 + 1, WIDTH)[None]])
def test_a_sequence_that_no_copy_helps_is_refused(x):
    with pytest.raises(ValueError, match=r"shape \(\d, 2097153, 1024\): the kernel takes at most 2147483648 elements"):
        addressable(x)


def test_unit_stride_allows_any_step_between_rows():
    rows = meta(1, 2**25, 4 * WIDTH)[..., :WIDTH]
    assert unit_stride(rows) is rows
    assert unit_stride(rows.mT).is_contiguous()


@pytest.mark.parametrize(
    "cut",
    [lambda x: x[1:, :16], lambda x: x[:, 1:17], lambda x: x.mT, lambda x: x.flatten()[4:36].view(2, 16)],
    ids=range(4),
)
def test_the_copy_engine_gets_what_it_can_address(cut):
    """Rows of whole 16 bytes at a multiple of 16. Here rows have 20 float32, so that not every copy is aligned."""
    x = cut(torch.randn(20, 20))
    copy = for_copy_engine(x)
    assert torch.equal(copy, x) and copy.stride(1) == 1
    assert copy.stride(0) % 4 == 0 and copy.data_ptr() % 16 == 0
    assert (copy is x) == (x.stride(1) == 1 and x.data_ptr() % 16 == 0)


def test_the_copy_engine_gets_an_expanded_tensor_copied():
    assert for_copy_engine(torch.randn(1, 16).expand(3, 16)).is_contiguous()


def test_a_step_that_is_never_taken_suits_the_copy_engine():
    assert strides_of(torch.empty_strided((1, 5, 16), (7, 24, 1))) == [16, 24, 1]
    assert strides_of(torch.empty_strided((3, 1, 16), (32, 7, 1))) == [32, 16, 1]


def test_two_tensors_are_one_where_the_copy_engine_reaches_both():
    """rho must lie a multiple of 16 bytes after q; otherwise both are copied, q first."""
    packed = torch.randn(2, 5, 3, 4 * 16)
    q, rho = packed[..., 16:32], packed[..., 48:]
    together = pair_descriptor(q, rho, 32)
    assert together.base is q and together.shape == [2, 3, 2, 5, 16] and together.strides == [960, 64, 32, 192, 1]
    shifted = torch.randn(2 * q.numel() + 2)[2:].view(2, *q.shape)  # 8 bytes too far
    for x, y in ((rho, q), (q, rho.contiguous()), (q.contiguous(), shifted[1]), (q, q)):
        copied = pair_descriptor(x, y, 32)
        assert copied.strides == [240, 16, 480, 48, 1]
        assert torch.equal(copied.base, x) and torch.equal(copied.base._base[1], y)


def normal(*shape, device):
    """Time-major: `[batch, T, ...]` of `[T, batch, ...]` in memory."""
    return torch.randn(shape[1], shape[0], *shape[2:], device=device).transpose(0, 1).requires_grad_()


def convolution(device):
    weight = torch.randn(3, 4, device=device)
    return [normal(2, 5, 3, device=device)], lambda x: short_convolution(x, weight, backend="triton")


def scan(device):
    rates, channel = -torch.rand(3, 4, device=device), torch.randn(3, device=device)
    B = C = torch.randn(2, 5, 4, device=device)

    def of(u, delta, z):
        return selective_scan(u, delta, channel, rates, B, C, channel, z, backend="triton")

    return [normal(2, 5, 3, device=device) for _ in range(3)], of


def block(device):
    shapes = (3, 4), (3,), (10, 3), (3, 2), (3,), (3, 4), (3,)
    parameters = [-torch.rand(shape, device=device) for shape in shapes]
    return [normal(2, 5, 6, device=device)], lambda xz: mamba_block(xz, *parameters, backend="triton")


def heads(device):
    part = Part(3, 2, Form.COPY)
    return [normal(2, 5, 6, device=device)], lambda x: split_heads(x, [part], backend="triton")[0]


def normed_heads(device):
    gain, parts = torch.randn(2, device=device), [Part(3, 2, Form.RMS_NORM)]
    return [normal(2, 5, 6, device=device)], lambda x: split_heads(x, parts, gains=[gain], eps=1.0, backend="triton")[0]


def convolved(device):
    weight, part = torch.randn(6, 4, device=device), Part(3, 2, Form.UNIT_NORM)
    return [normal(2, 5, 6, device=device)], lambda x: convolve_heads(x, weight, [part], backend="triton")[0]


@pytest.mark.parametrize(
    "module, case",
    [
        ("short_convolution.triton_convolution", convolution),
        ("selective_scan.triton_scan", scan),
        ("selective_scan.block.operator", block),
        ("fused.heads.triton_kernels", heads),
        ("fused.heads.triton_kernels", normed_heads),
        ("short_convolution.heads.operator", convolved),
    ],
)
def test_kernels_with_32_bit_offsets_ask(device, module, case, monkeypatch):
    """About every input of arbitrary strides, and about the gradient of the result, forward and backward."""
    asked = []

    def ask(x):
        asked.append(x.data_ptr())
        return addressable(x)

    monkeypatch.setattr(import_module(f"mixerlab.kernels.{module}"), "addressable", ask)
    inputs, function = case(device)
    y = function(*inputs)
    assert {x.data_ptr() for x in inputs} <= set(asked)
    grad = normal(*y.shape, device=device).detach()
    asked.clear()
    torch.autograd.grad(y, inputs, grad)
    backward = {x.data_ptr() for x in (*inputs, grad)}
    if case in (block, convolved):  # the scan asks about `grad`, or it is made contiguous
        backward = {inputs[0].data_ptr()}
    assert backward <= set(asked)
