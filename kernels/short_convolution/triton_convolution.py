"""Triton kernels of the short convolution, for up to 4 taps; fewer are the last of 4, the others being zero.

A program walks CHUNK rows of a block of channels with the last inputs in registers, so that each row is
loaded once. Backward it also keeps the unfinished gradients; outputs just after the chunk need its inputs
too, and the next chunk computes theirs again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK, BLOCK_C = 32, 128  # one warp per program


@triton.jit
def _tap(weight_ptr, channel, CHANNELS, tap: tl.constexpr, TAPS: tl.constexpr):
    """The weights of tap 0 to 3."""
    if tap + TAPS < 4:
        return tl.zeros_like(channel).to(tl.float32)
    else:
        return tl.load(weight_ptr + channel * TAPS + (tap + TAPS - 4), mask=channel < CHANNELS, other=0.0)


@triton.jit
def _row(ptr, time, stride, channel, T, CHANNELS):
    """One row as float32; 0 outside the sequence."""
    width = tl.where((time >= 0) & (time < T), CHANNELS, 0)
    return tl.load(ptr + time * stride + channel, mask=channel < width, other=0.0).to(tl.float32)


@triton.jit
def _forward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    T,
    CHANNELS,
    group_size,
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
    weight_ptr += group * CHANNELS * TAPS
    bias = tl.load(bias_ptr + group * CHANNELS + channel, mask=is_channel, other=0.0)
    w0 = _tap(weight_ptr, channel, CHANNELS, 0, TAPS)
    w1 = _tap(weight_ptr, channel, CHANNELS, 1, TAPS)
    w2 = _tap(weight_ptr, channel, CHANNELS, 2, TAPS)
    w3 = _tap(weight_ptr, channel, CHANNELS, 3, TAPS)
    x0 = _row(x_ptr, first - 3, x_time, channel, T, CHANNELS)
    x1 = _row(x_ptr, first - 2, x_time, channel, T, CHANNELS)
    x2 = _row(x_ptr, first - 1, x_time, channel, T, CHANNELS)
    for step in range(CHUNK):
        time = first + step
        x3 = _row(x_ptr, time, x_time, channel, T, CHANNELS)
        total = bias + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        y = total * tl.sigmoid(total)
        width = tl.where(time < T, CHANNELS, 0)
        tl.store(y_ptr + time * CHANNELS + channel, y.to(y_ptr.dtype.element_ty), mask=channel < width)
        x0, x1, x2 = x1, x2, x3


@triton.jit
def _backward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    grad_ptr,
    grad_x_ptr,
    sums_ptr,
    T,
    CHANNELS,
    group_size,
    x_batch,
    x_time,
    grad_batch,
    grad_time,
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
    grad_ptr += batch * grad_batch
    grad_x_ptr += batch * T * CHANNELS
    weight_ptr += group * CHANNELS * TAPS
    bias = tl.load(bias_ptr + group * CHANNELS + channel, mask=is_channel, other=0.0)
    w0 = _tap(weight_ptr, channel, CHANNELS, 0, TAPS)
    w1 = _tap(weight_ptr, channel, CHANNELS, 1, TAPS)
    w2 = _tap(weight_ptr, channel, CHANNELS, 2, TAPS)
    w3 = _tap(weight_ptr, channel, CHANNELS, 3, TAPS)

    # At time t: x0..x3 are the inputs t-3..t; part0..part2 what outputs before t sent to the inputs t-3..t-1.
    # (A delay line of gradients, all zero at first, is folded into constants by Triton 3.7 to 3.9.)
    x0 = _row(x_ptr, first - 3, x_time, channel, T, CHANNELS)
    x1 = _row(x_ptr, first - 2, x_time, channel, T, CHANNELS)
    x2 = _row(x_ptr, first - 1, x_time, channel, T, CHANNELS)
    zero = tl.zeros((BLOCK_C,), dtype=tl.float32)
    part0, part1, part2 = zero, zero, zero
    sum0, sum1, sum2, sum3, sum_bias = zero, zero, zero, zero, zero
    x3 = _row(x_ptr, first, x_time, channel, T, CHANNELS)
    grad = _row(grad_ptr, first, grad_time, channel, T, CHANNELS)
    for step in range(CHUNK + 3):
        time = first + step
        next_x = _row(x_ptr, time + 1, x_time, channel, T, CHANNELS)
        next_grad = _row(grad_ptr, time + 1, grad_time, channel, T, CHANNELS)
        total = bias + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3
        sigmoid = tl.sigmoid(total)
        d_total = grad * sigmoid * (1.0 + total * (1.0 - sigmoid))
        own = tl.where(step < CHUNK, d_total, 0.0)
        sum0 += own * x0
        sum1 += own * x1
        sum2 += own * x2
        sum3 += own * x3
        sum_bias += own
        row = time - 3
        width = tl.where((row >= first) & (row < T), CHANNELS, 0)
        grad_x = (part0 + w0 * d_total).to(grad_x_ptr.dtype.element_ty)
        tl.store(grad_x_ptr + row * CHANNELS + channel, grad_x, mask=channel < width)
        x0, x1, x2, x3, grad = x1, x2, x3, next_x, next_grad
        part0, part1, part2 = part1 + w1 * d_total, part2 + w2 * d_total, w3 * d_total

    part = batch * tl.num_programs(1) + tl.program_id(1)
    sums = sums_ptr + part * 5 * CHANNELS + channel
    tl.store(sums, sum0, mask=is_channel)
    tl.store(sums + CHANNELS, sum1, mask=is_channel)
    tl.store(sums + 2 * CHANNELS, sum2, mask=is_channel)
    tl.store(sums + 3 * CHANNELS, sum3, mask=is_channel)
    tl.store(sums + 4 * CHANNELS, sum_bias, mask=is_channel)


def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`convolution` of `kernels.short_convolution.operator`."""
    batch, length, channels = x.shape
    x = _unit_stride(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _forward_kernel[(triton.cdiv(channels, BLOCK_C), triton.cdiv(length, CHUNK), batch)](
        x,
        weight.contiguous(),
        bias.contiguous(),
        y,
        length,
        channels,
        batch // weight.shape[0],
        *x.stride()[:2],
        TAPS=weight.shape[2],
        CHUNK=CHUNK,
        BLOCK_C=BLOCK_C,
        num_warps=1,
    )
    return y


def backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`convolution_backward` of `kernels.short_convolution.operator`. No atomics: the same bits every time."""
    batch, length, channels = x.shape
    groups, _, taps = weight.shape
    x, grad = _unit_stride(x), _unit_stride(grad)
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    chunks = triton.cdiv(length, CHUNK)
    # Each program's share of the gradients of the 4 taps and the bias.
    sums = torch.empty((groups, batch // groups * chunks, 5, channels), dtype=torch.float32, device=x.device)
    _backward_kernel[(triton.cdiv(channels, BLOCK_C), chunks, batch)](
        x,
        weight.contiguous(),
        bias.contiguous(),
        grad,
        grad_x,
        sums,
        length,
        channels,
        batch // groups,
        *x.stride()[:2],
        *grad.stride()[:2],
        TAPS=taps,
        CHUNK=CHUNK,
        BLOCK_C=BLOCK_C,
        num_warps=1,
    )
    _, grad_weight, grad_bias = sums.sum(1).split((4 - taps, taps, 1), dim=1)
    return grad_x, grad_weight.transpose(1, 2).contiguous(), grad_bias[:, 0].clone()


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
