"""Triton kernels of the short convolution, for up to 4 taps; fewer are the last of 4, the others being zero.

A program takes CHUNK rows of a block of channels at a time: it asks for all of them, then computes from registers,
so that the loads overlap. Backward, the outputs just after a chunk need its inputs too, and are computed again.

The results may be several tensors, parts of the channels side by side. Where the first of them get unit norm per head,
a block is a head: one warp, whose threads hold the channels of a row, adds up the squares.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.float32_sums import sum_float32_parts
from kernels.layout import addressable

CHUNK, BLOCK_C = 16, 64  # one warp per program
CHUNKS = 4  # of a backward program, which sums the gradients of the parameters over them


@triton.jit
def _place(CHANNELS, WIDTH: tl.constexpr, BLOCK_C: tl.constexpr):
    """Of this program: the part of CHANNELS channels, its block of WIDTH in it, and the channel that ends the block."""
    blocks = tl.cdiv(CHANNELS, WIDTH)
    part, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    channel = block * WIDTH + tl.arange(0, BLOCK_C)
    return part, channel, CHANNELS if WIDTH == BLOCK_C else (block + 1) * WIDTH


@triton.jit
def _pointer(ptrs, part):
    """`ptrs[part]`; a tuple takes only indices known to the compiler."""
    ptr = ptrs[0]
    for i in tl.static_range(1, len(ptrs)):
        ptr = tl.where(part == i, ptrs[i], ptr)
    return ptr


@triton.jit
def _taps(weight_ptr, bias_ptr, channel, end, channel_stride, TAPS: tl.constexpr):
    """The weights of taps 0 to 3, and the bias."""
    w0 = _tap(weight_ptr, channel, end, channel_stride, 0, TAPS)
    w1 = _tap(weight_ptr, channel, end, channel_stride, 1, TAPS)
    w2 = _tap(weight_ptr, channel, end, channel_stride, 2, TAPS)
    w3 = _tap(weight_ptr, channel, end, channel_stride, 3, TAPS)
    if bias_ptr is None:
        bias = tl.zeros_like(channel).to(tl.float32)
    else:
        bias = tl.load(bias_ptr + channel, mask=channel < end, other=0.0)
    return w0, w1, w2, w3, bias


@triton.jit
def _tap(weight_ptr, channel, end, channel_stride, tap: tl.constexpr, TAPS: tl.constexpr):
    if tap + TAPS < 4:
        return tl.zeros_like(channel).to(tl.float32)
    else:
        return tl.load(weight_ptr + channel * channel_stride + (tap + TAPS - 4), mask=channel < end, other=0.0)


@triton.jit
def _row(ptr, time, stride, channel, T, end):
    """One row; 0 outside the sequence."""
    end = tl.where((time >= 0) & (time < T), end, 0)
    return tl.load(ptr + time * stride + channel, mask=channel < end, other=0.0)


@triton.jit
def _preactivation(x, s: tl.constexpr, taps):
    """The convolution where the inputs are rows s to s + 3 of the tuple `x`."""
    total = taps[4] + taps[0] * x[s].to(tl.float32) + taps[1] * x[s + 1].to(tl.float32)
    return total + taps[2] * x[s + 2].to(tl.float32) + taps[3] * x[s + 3].to(tl.float32)


@triton.jit
def _forward_rows(
    x_ptr, x_time, y_ptr, taps, first, channel, end, T, CHANNELS, eps, CHUNK: tl.constexpr, UNIT_NORM: tl.constexpr
):
    x = ()
    for s in tl.static_range(CHUNK + 3):
        x += (_row(x_ptr, first + (s - 3), x_time, channel, T, end),)
    for s in tl.static_range(CHUNK):
        time = first + s
        total = _preactivation(x, s, taps)
        y = total * tl.sigmoid(total)
        if UNIT_NORM:
            y *= tl.rsqrt(tl.sum(y * y, axis=0) + eps)
        row_end = tl.where(time < T, end, 0)
        tl.store(y_ptr + time * CHANNELS + channel, y.to(y_ptr.dtype.element_ty), mask=channel < row_end)


@triton.jit
def convolution_forward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptrs,
    T,
    CHANNELS,  # of each part
    group_size,
    weight_group,
    weight_channel,
    bias_group,
    x_batch,
    x_time,
    eps,
    NORMED: tl.constexpr,  # how many of the parts, the first ones
    TAPS: tl.constexpr,
    CHUNK: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    group = batch // group_size
    first = tl.program_id(1) * CHUNK
    part, channel, end = _place(CHANNELS, WIDTH, BLOCK_C)
    x_ptr += batch * x_batch + part * CHANNELS
    y_ptr = _pointer(y_ptrs, part) + batch * T * CHANNELS
    weight_ptr += group * weight_group + part * CHANNELS * weight_channel
    if bias_ptr is not None:
        bias_ptr += group * bias_group + part * CHANNELS
    taps = _taps(weight_ptr, bias_ptr, channel, end, weight_channel, TAPS)
    if len(y_ptrs) == NORMED or (NORMED > 0 and part < NORMED):
        _forward_rows(x_ptr, x_time, y_ptr, taps, first, channel, end, T, CHANNELS, eps, CHUNK, True)
    else:
        _forward_rows(x_ptr, x_time, y_ptr, taps, first, channel, end, T, CHANNELS, eps, CHUNK, False)


@triton.jit
def _backward_rows(
    x_ptr,
    x_time,
    grad_ptr,
    grad_time,
    grad_x_ptr,
    grad_x_time,
    taps,
    start,
    channel,
    end,
    T,
    eps,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    UNIT_NORM: tl.constexpr,
):
    """Writes the rows of `grad_x`; returns the sums for the four taps and the bias."""
    zero = tl.zeros_like(channel).to(tl.float32)
    sum0, sum1, sum2, sum3, sum_bias = zero, zero, zero, zero, zero
    for first in range(start, tl.minimum(start + CHUNK * CHUNKS, T), CHUNK):
        x, grad = (), ()
        for s in tl.static_range(CHUNK + 6):
            x += (_row(x_ptr, first + (s - 3), x_time, channel, T, end),)
        for s in tl.static_range(CHUNK + 3):
            grad += (_row(grad_ptr, first + s, grad_time, channel, T, end),)
        d_total = ()  # gradients of the sums inside SiLU; 0 after the sequence, as `grad` is
        for s in tl.static_range(CHUNK + 3):
            total = _preactivation(x, s, taps)
            sigmoid = tl.sigmoid(total)
            d_y = grad[s].to(tl.float32)
            if UNIT_NORM:
                y = total * sigmoid
                scale = tl.rsqrt(tl.sum(y * y, axis=0) + eps)
                d_y = scale * (d_y - y * (scale * scale * tl.sum(d_y * y, axis=0)))
            d_total += (d_y * sigmoid * (1.0 + total * (1.0 - sigmoid)),)
        for s in tl.static_range(CHUNK):
            sum0 += d_total[s] * x[s].to(tl.float32)
            sum1 += d_total[s] * x[s + 1].to(tl.float32)
            sum2 += d_total[s] * x[s + 2].to(tl.float32)
            sum3 += d_total[s] * x[s + 3].to(tl.float32)
            sum_bias += d_total[s]
            grad_x = (
                taps[3] * d_total[s] + taps[2] * d_total[s + 1] + taps[1] * d_total[s + 2] + taps[0] * d_total[s + 3]
            )
            time = first + s
            row_end = tl.where(time < T, end, 0)
            tl.store(
                grad_x_ptr + time * grad_x_time + channel,
                grad_x.to(grad_x_ptr.dtype.element_ty),
                mask=channel < row_end,
            )
    return sum0, sum1, sum2, sum3, sum_bias


@triton.jit
def convolution_backward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    grad_ptrs,
    grad_x_ptr,
    sums_ptr,
    T,
    CHANNELS,  # of each part
    group_size,
    weight_group,
    weight_channel,
    bias_group,
    x_batch,
    x_time,
    grad_batch,
    grad_time,
    grad_x_batch,
    grad_x_time,
    eps,
    NORMED: tl.constexpr,  # how many of the parts, the first ones
    TAPS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    group = batch // group_size
    start = tl.program_id(1) * CHUNK * CHUNKS
    part, channel, end = _place(CHANNELS, WIDTH, BLOCK_C)
    before = part * CHANNELS
    x_ptr += batch * x_batch + before
    grad_ptr = _pointer(grad_ptrs, part) + batch * grad_batch
    grad_x_ptr += batch * grad_x_batch + before
    weight_ptr += group * weight_group + before * weight_channel
    if bias_ptr is not None:
        bias_ptr += group * bias_group + before
    taps = _taps(weight_ptr, bias_ptr, channel, end, weight_channel, TAPS)

    x, grad, grad_x = (x_ptr, x_time), (grad_ptr, grad_time), (grad_x_ptr, grad_x_time)
    if len(grad_ptrs) == NORMED or (NORMED > 0 and part < NORMED):
        sums = _backward_rows(*x, *grad, *grad_x, taps, start, channel, end, T, eps, CHUNK, CHUNKS, True)
    else:
        sums = _backward_rows(*x, *grad, *grad_x, taps, start, channel, end, T, eps, CHUNK, CHUNKS, False)

    channels = len(grad_ptrs) * CHANNELS
    program = batch * tl.num_programs(1) + tl.program_id(1)
    is_channel = channel < end
    channel += before
    if bias_ptr is None:
        sums_ptr += program * TAPS * channels
    else:
        sums_ptr += program * (TAPS + 1) * channels
        tl.store(sums_ptr + TAPS * channels + channel, sums[4], mask=is_channel)
    for tap in tl.static_range(4 - TAPS, 4):
        tl.store(sums_ptr + channel * TAPS + (tap + TAPS - 4), sums[tap], mask=is_channel)


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`convolution` of `kernels.short_convolution.operator`."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _forward(x, weight, bias, [y], BLOCK_C, 0, 0.0)
    return y


def forward_heads(x: Tensor, weight: Tensor, ys: Sequence[Tensor], normed: int, eps: float) -> None:
    """Writes `ys`, each contiguous `[batch, T, heads, width]`: together the channels of `x`, without a bias.

    The first `normed` get unit norm per head, `y / sqrt(|y|^2 + eps)`.
    """
    _forward(x, weight, None, ys, ys[0].shape[3], normed, eps)


def _forward(x, weight, bias, ys, width, normed, eps) -> None:
    batch, length, _ = x.shape
    x, weight, bias = _readable(x, weight, bias)
    channels = weight.shape[1] // len(ys)
    blocks = len(ys) * triton.cdiv(channels, width)
    convolution_forward_kernel[blocks, triton.cdiv(length, CHUNK), batch](
        x,
        weight,
        bias,
        tuple(ys),
        length,
        channels,
        batch // weight.shape[0],
        *weight.stride()[:2],
        0 if bias is None else bias.stride(0),
        *x.stride()[:2],
        eps,
        NORMED=normed,
        TAPS=weight.shape[2],
        CHUNK=CHUNK,
        WIDTH=width,
        BLOCK_C=triton.next_power_of_2(width),
        num_warps=1,
    )


def backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, grad_x: Tensor) -> Tensor:
    """Writes `grad_x`, of unit stride in the channels; returns the gradients of the parameters.

    They are `[groups, channels * (taps + 1)]`: weight, then bias. No atomics: the same bits every time.
    """
    return _backward([addressable(grad)], x, weight, bias, grad_x, BLOCK_C, 0, 0.0)


def backward_heads(
    grads: Sequence[Tensor], x: Tensor, weight: Tensor, grad_x: Tensor, normed: int, eps: float
) -> Tensor:
    """Writes `grad_x`, as `backward` does; returns the gradient of `weight`. `grads` are laid out as `forward_heads`
    lays out results, or copied.
    """
    width = grads[0].shape[3]
    grads = [grad.flatten(2).contiguous() for grad in grads]
    return _backward(grads, x, weight, None, grad_x, width, normed, eps).view(weight.shape)


def _backward(grads, x, weight, bias, grad_x, width, normed, eps) -> Tensor:
    batch, length, _ = x.shape
    groups, _, taps = weight.shape
    x, weight, bias = _readable(x, weight, bias)
    channels = weight.shape[1] // len(grads)
    blocks = len(grads) * triton.cdiv(channels, width)
    programs = triton.cdiv(length, CHUNK * CHUNKS)
    per_channel = taps if bias is None else taps + 1
    sums = torch.empty((groups, batch // groups * programs, per_channel * weight.shape[1]), device=x.device)
    convolution_backward_kernel[blocks, programs, batch](
        x,
        weight,
        bias,
        tuple(grads),
        grad_x,
        sums,
        length,
        channels,
        batch // groups,
        *weight.stride()[:2],
        0 if bias is None else bias.stride(0),
        *x.stride()[:2],
        *grads[0].stride()[:2],
        *grad_x.stride()[:2],
        eps,
        NORMED=normed,
        TAPS=taps,
        CHUNK=CHUNK,
        CHUNKS=CHUNKS,
        WIDTH=width,
        BLOCK_C=triton.next_power_of_2(width),
        num_warps=1,
    )
    return sum_float32_parts(sums)


def _readable(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    return addressable(x), addressable(weight), None if bias is None else addressable(bias)
