"""Triton kernels of the short convolution, for up to 4 taps; fewer are the last of 4, the others being zero.

A program takes CHUNK rows of a block of channels at a time: it asks for all of them, then computes from registers,
so that the loads overlap. Backward, the outputs just after a chunk need its inputs too, and are computed again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.float32_sums import sum_float32_parts
from kernels.layout import addressable

CHUNK, BLOCK_C = 16, 64  # one warp per program
CHUNKS = 4  # of a backward program, which sums the gradients of the parameters over them


@triton.jit
def _tap(weight_ptr, channel, CHANNELS, channel_stride, tap: tl.constexpr, TAPS: tl.constexpr):
    """The weights of tap 0 to 3."""
    if tap + TAPS < 4:
        return tl.zeros_like(channel).to(tl.float32)
    else:
        return tl.load(weight_ptr + channel * channel_stride + (tap + TAPS - 4), mask=channel < CHANNELS, other=0.0)


@triton.jit
def _row(ptr, time, stride, channel, T, CHANNELS):
    """One row; 0 outside the sequence."""
    width = tl.where((time >= 0) & (time < T), CHANNELS, 0)
    return tl.load(ptr + time * stride + channel, mask=channel < width, other=0.0)


@triton.jit
def _preactivation(x, s: tl.constexpr, w0, w1, w2, w3, bias):
    """The convolution where the inputs are rows s to s + 3 of the tuple `x`."""
    total = bias + w0 * x[s].to(tl.float32) + w1 * x[s + 1].to(tl.float32)
    return total + w2 * x[s + 2].to(tl.float32) + w3 * x[s + 3].to(tl.float32)


@triton.jit
def convolution_forward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    T,
    CHANNELS,
    group_size,
    weight_group,
    weight_channel,
    bias_group,
    x_batch,
    x_time,
    TAPS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    group = batch // group_size
    first = tl.program_id(1) * CHUNK
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_channel = channel < CHANNELS
    x_ptr += batch * x_batch
    y_ptr += batch * T * CHANNELS
    weight_ptr += group * weight_group
    x = ()
    for s in tl.static_range(CHUNK + 3):
        x += (_row(x_ptr, first + (s - 3), x_time, channel, T, CHANNELS),)
    bias = tl.load(bias_ptr + group * bias_group + channel, mask=is_channel, other=0.0)
    w0 = _tap(weight_ptr, channel, CHANNELS, weight_channel, 0, TAPS)
    w1 = _tap(weight_ptr, channel, CHANNELS, weight_channel, 1, TAPS)
    w2 = _tap(weight_ptr, channel, CHANNELS, weight_channel, 2, TAPS)
    w3 = _tap(weight_ptr, channel, CHANNELS, weight_channel, 3, TAPS)
    for s in tl.static_range(CHUNK):
        time = first + s
        total = _preactivation(x, s, w0, w1, w2, w3, bias)
        y = total * tl.sigmoid(total)
        width = tl.where(time < T, CHANNELS, 0)
        tl.store(y_ptr + time * CHANNELS + channel, y.to(y_ptr.dtype.element_ty), mask=channel < width)


@triton.jit
def convolution_backward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    grad_ptr,
    grad_x_ptr,
    sums_ptr,
    T,
    CHANNELS,
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
    TAPS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    group = batch // group_size
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_channel = channel < CHANNELS
    x_ptr += batch * x_batch
    grad_ptr += batch * grad_batch
    grad_x_ptr += batch * grad_x_batch
    weight_ptr += group * weight_group
    bias = tl.load(bias_ptr + group * bias_group + channel, mask=is_channel, other=0.0)
    w0 = _tap(weight_ptr, channel, CHANNELS, weight_channel, 0, TAPS)
    w1 = _tap(weight_ptr, channel, CHANNELS, weight_channel, 1, TAPS)
    w2 = _tap(weight_ptr, channel, CHANNELS, weight_channel, 2, TAPS)
    w3 = _tap(weight_ptr, channel, CHANNELS, weight_channel, 3, TAPS)

    zero = tl.zeros((BLOCK_C,), dtype=tl.float32)
    sum0, sum1, sum2, sum3, sum_bias = zero, zero, zero, zero, zero
    start = tl.program_id(1) * CHUNK * CHUNKS
    for first in range(start, tl.minimum(start + CHUNK * CHUNKS, T), CHUNK):
        x, grad = (), ()
        for s in tl.static_range(CHUNK + 6):
            x += (_row(x_ptr, first + (s - 3), x_time, channel, T, CHANNELS),)
        for s in tl.static_range(CHUNK + 3):
            grad += (_row(grad_ptr, first + s, grad_time, channel, T, CHANNELS),)
        d_total = ()  # gradients of the sums inside SiLU; 0 after the sequence, as `grad` is
        for s in tl.static_range(CHUNK + 3):
            total = _preactivation(x, s, w0, w1, w2, w3, bias)
            sigmoid = tl.sigmoid(total)
            d_total += (grad[s].to(tl.float32) * sigmoid * (1.0 + total * (1.0 - sigmoid)),)
        for s in tl.static_range(CHUNK):
            sum0 += d_total[s] * x[s].to(tl.float32)
            sum1 += d_total[s] * x[s + 1].to(tl.float32)
            sum2 += d_total[s] * x[s + 2].to(tl.float32)
            sum3 += d_total[s] * x[s + 3].to(tl.float32)
            sum_bias += d_total[s]
            grad_x = w3 * d_total[s] + w2 * d_total[s + 1] + w1 * d_total[s + 2] + w0 * d_total[s + 3]
            time = first + s
            width = tl.where(time < T, CHANNELS, 0)
            tl.store(
                grad_x_ptr + time * grad_x_time + channel, grad_x.to(grad_x_ptr.dtype.element_ty), mask=channel < width
            )

    part = batch * tl.num_programs(1) + tl.program_id(1)
    sums = sums_ptr + part * (TAPS + 1) * CHANNELS
    taps = sums + channel * TAPS + (TAPS - 4)
    if TAPS == 4:
        tl.store(taps, sum0, mask=is_channel)
    if TAPS >= 3:
        tl.store(taps + 1, sum1, mask=is_channel)
    if TAPS >= 2:
        tl.store(taps + 2, sum2, mask=is_channel)
    tl.store(taps + 3, sum3, mask=is_channel)
    tl.store(sums + TAPS * CHANNELS + channel, sum_bias, mask=is_channel)


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`convolution` of `kernels.short_convolution.operator`."""
    batch, length, channels = x.shape
    x, weight, bias = (addressable(t) for t in (x, weight, bias))
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    convolution_forward_kernel[(triton.cdiv(channels, BLOCK_C), triton.cdiv(length, CHUNK), batch)](
        x,
        weight,
        bias,
        y,
        length,
        channels,
        batch // weight.shape[0],
        *weight.stride()[:2],
        bias.stride(0),
        *x.stride()[:2],
        TAPS=weight.shape[2],
        CHUNK=CHUNK,
        BLOCK_C=BLOCK_C,
        num_warps=1,
    )
    return y


def backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor, grad_x: Tensor) -> Tensor:
    """Writes `grad_x`, of unit stride in the channels; returns the gradients of the parameters.

    They are `[groups, channels * (taps + 1)]`: weight, then bias. No atomics: the same bits every time.
    """
    batch, length, channels = x.shape
    groups, _, taps = weight.shape
    x, grad, weight, bias = (addressable(t) for t in (x, grad, weight, bias))
    programs = triton.cdiv(length, CHUNK * CHUNKS)
    sums = torch.empty((groups, batch // groups * programs, (taps + 1) * channels), device=x.device)
    convolution_backward_kernel[(triton.cdiv(channels, BLOCK_C), programs, batch)](
        x,
        weight,
        bias,
        grad,
        grad_x,
        sums,
        length,
        channels,
        batch // groups,
        *weight.stride()[:2],
        bias.stride(0),
        *x.stride()[:2],
        *grad.stride()[:2],
        *grad_x.stride()[:2],
        TAPS=taps,
        CHUNK=CHUNK,
        CHUNKS=CHUNKS,
        BLOCK_C=BLOCK_C,
        num_warps=1,
    )
    return sum_float32_parts(sums)
