"""Triton kernels of the short convolution, for up to 4 taps; fewer are the last of 4, and the others are zero.

A program is one warp. It takes a block of channels and some stretches of the sequence, and moves along all of them at
the same time. Each thread has four channels of one stretch: the fewer threads share a row, the fewer shuffles its sum
takes. It loads UNROLL positions at once, so that the loads overlap, and carries three in registers. In the backward the
outputs just after a stretch depend on its inputs too, and are computed again. The results may be several tensors, each
of some of the channels. If the first of them get unit norm per head, a block of channels is a head.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.addressing import addressable
from mixerlab.kernels.common.triton_elementwise import sigmoid_for, to_float32
from mixerlab.kernels.common.triton_sums import sum_parts

BLOCK_C = 64  # if there are no heads
ACROSS = 128  # channels of all stretches of a program: four for each thread
UNROLL = 8
# Most positions of a stretch. In the backward a program also sums the gradients of the parameters over its stretches.
FORWARD_ROWS, BACKWARD_ROWS = 32, 128
# One build for all lengths with the same alignment of rows, and for parameters at any place in the population.
ANY = {
    "do_not_specialize": ["T", "ROWS", "weight_group", "bias_group"],
    "do_not_specialize_on_alignment": ["weight_ptr", "bias_ptr"],
}


@triton.jit
def _place(CHANNELS, ROWS, STREAMS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_C: tl.constexpr):
    """What this program works on.

    Returns the first of its block of WIDTH channels, all of them, `[1, BLOCK_C]`, the end of the block, and the
    positions where its stretches start, `[STREAMS, 1]`.
    """
    first = tl.program_id(0) * WIDTH
    channel = first + tl.arange(0, BLOCK_C)[None, :]
    start = (tl.program_id(1) * STREAMS + tl.arange(0, STREAMS)[:, None]) * ROWS
    return first, channel, CHANNELS if WIDTH == BLOCK_C else first + WIDTH, start


@triton.jit
def _part(ptrs, starts, strides, batch, first):
    """Where the part with channel `first` would have channel 0 of this sequence, and its stride of time.

    Triton indexes tuples only with what the compiler knows, so this goes through all parts.
    """
    ptr, time_stride = ptrs[0] + batch * strides[0][0], strides[0][1]
    for i in tl.static_range(1, len(ptrs)):
        is_here = first >= starts[i]
        ptr = tl.where(is_here, ptrs[i] + (batch * strides[i][0] - starts[i]), ptr)
        time_stride = tl.where(is_here, strides[i][1], time_stride)
    return ptr, time_stride


@triton.jit
def _taps(weight_ptr, bias_ptr, channel, end, channel_stride, TAPS: tl.constexpr):
    """The weights of taps 0 to 3, and the bias, each `[1, BLOCK_C]`."""
    w0 = _tap(weight_ptr, channel, end, channel_stride, 0, TAPS)
    w1 = _tap(weight_ptr, channel, end, channel_stride, 1, TAPS)
    w2 = _tap(weight_ptr, channel, end, channel_stride, 2, TAPS)
    w3 = _tap(weight_ptr, channel, end, channel_stride, 3, TAPS)
    bias = tl.zeros_like(w3) if bias_ptr is None else tl.load(bias_ptr + channel, mask=channel < end, other=0.0)
    return w0, w1, w2, w3, bias


@triton.jit
def _tap(weight_ptr, channel, end, channel_stride, tap: tl.constexpr, TAPS: tl.constexpr):
    if tap + TAPS < 4:
        return tl.zeros_like(channel).to(tl.float32)
    else:
        return tl.load(weight_ptr + channel * channel_stride + (tap + TAPS - 4), mask=channel < end, other=0.0)


@triton.jit
def _row(ptr, time, stride, channel, T, end):
    """One position of every stretch, `[STREAMS, BLOCK_C]`; zero outside the sequence."""
    return tl.load(ptr + (time * stride + channel), mask=(time >= 0) & (time < T) & (channel < end), other=0.0)


@triton.jit
def _store_row(ptr, time, stride, channel, T, end, row):
    row = row.to(ptr.dtype.element_ty)
    tl.store(ptr + (time * stride + channel), row, mask=(time < T) & (channel < end))


@triton.jit
def _preactivation(x0, x1, x2, x3, taps):
    return taps[4] + taps[0] * x0 + taps[1] * x1 + taps[2] * x2 + taps[3] * x3


@triton.jit
def _forward_rows(
    x_ptr,
    x_time,
    y_ptr,
    y_time, taps, start, channel, end, T, eps, ROWS,
    UNROLL: tl.constexpr, UNIT_NORM: tl.constexpr,
):  # fmt: skip
    x0 = to_float32(_row(x_ptr, start - 3, x_time, channel, T, end))
    x1 = to_float32(_row(x_ptr, start - 2, x_time, channel, T, end))
    x2 = to_float32(_row(x_ptr, start - 1, x_time, channel, T, end))
    for step in range(0, ROWS, UNROLL):
        rows: tl.tuple = ()
        for s in tl.static_range(UNROLL):
            rows += (_row(x_ptr, start + step + s, x_time, channel, T, end),)
        for s in tl.static_range(UNROLL):
            x3 = to_float32(rows[s])
            total = _preactivation(x0, x1, x2, x3, taps)
            y = total * sigmoid_for(total, x_ptr.dtype.element_ty)
            if UNIT_NORM:
                y *= tl.rsqrt(tl.sum(y * y, axis=1, keep_dims=True) + eps)
            _store_row(y_ptr, start + step + s, y_time, channel, T, end, y)
            x0, x1, x2 = x1, x2, x3


@triton.jit(**ANY)
def convolution_forward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptrs,
    y_starts,  # the first channel of each part
    y_strides,  # of its batch and time
    T,
    CHANNELS,  # of all parts
    group_size,
    weight_group,
    weight_channel,
    bias_group,
    x_batch,
    x_time,
    eps,
    NORMED: tl.constexpr,  # how many of the parts get unit norm; they come first
    TAPS: tl.constexpr,
    ROWS,
    STREAMS: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    group = batch // group_size
    first, channel, end, start = _place(CHANNELS, ROWS, STREAMS, WIDTH, BLOCK_C)
    x = x_ptr + batch * x_batch, x_time
    y = _part(y_ptrs, y_starts, y_strides, batch, first)
    weight_ptr += group * weight_group
    if bias_ptr is not None:
        bias_ptr += group * bias_group
    taps = _taps(weight_ptr, bias_ptr, channel, end, weight_channel, TAPS)
    if len(y_ptrs) == NORMED or (NORMED > 0 and first < y_starts[NORMED]):
        _forward_rows(*x, *y, taps, start, channel, end, T, eps, ROWS, UNROLL, True)
    else:
        _forward_rows(*x, *y, taps, start, channel, end, T, eps, ROWS, UNROLL, False)


@triton.jit
def _d_total(x0, x1, x2, x3, grad, taps, eps, is_normed):
    """The gradient of the sum inside SiLU; 0 where `grad` is."""
    total = _preactivation(x0, x1, x2, x3, taps)
    sigmoid = sigmoid_for(total, grad.dtype)
    y = total * sigmoid
    d_y = to_float32(grad)
    if is_normed:
        scale = tl.rsqrt(tl.sum(y * y, axis=1, keep_dims=True) + eps)
        along = scale * scale * scale * tl.sum(d_y * y, axis=1, keep_dims=True)
        d_y = scale * d_y - along * y
    return d_y * (sigmoid + y * (1.0 - sigmoid))


@triton.jit
def _backward_rows(
    x_ptr,
    x_time,
    grad_ptr,
    grad_time,
    grad_x_ptr,
    grad_x_time, taps, start, channel, end, T, eps, ROWS, is_normed,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Writes the rows of `grad_x`; returns the sums for the four taps and the bias."""
    x: tl.tuple = ()  # of six positions
    d_total: tl.tuple = ()  # gradients of the sums at the three positions that read the first rows
    for s in tl.static_range(6):
        x += (to_float32(_row(x_ptr, start + (s - 3), x_time, channel, T, end)),)
    for s in tl.static_range(3):
        grad = _row(grad_ptr, start + s, grad_time, channel, T, end)
        d_total += (_d_total(x[s], x[s + 1], x[s + 2], x[s + 3], grad, taps, eps, is_normed),)
    x0, x1, x2 = x[3], x[4], x[5]
    d0, d1, d2 = d_total
    zero = tl.zeros_like(x0)
    sum0, sum1, sum2, sum3, sum_bias = zero, zero, zero, zero, zero
    for step in range(0, ROWS, UNROLL):
        rows: tl.tuple = ()
        grads: tl.tuple = ()
        for s in tl.static_range(UNROLL):
            rows += (_row(x_ptr, start + step + (s + 3), x_time, channel, T, end),)
            grads += (_row(grad_ptr, start + step + (s + 3), grad_time, channel, T, end),)
        for s in tl.static_range(UNROLL):
            x3 = to_float32(rows[s])
            d3 = _d_total(x0, x1, x2, x3, grads[s], taps, eps, is_normed)
            sum0 += d3 * x0
            sum1 += d2 * x0
            sum2 += d1 * x0
            sum3 += d0 * x0
            sum_bias += d0
            grad_x = taps[3] * d0 + taps[2] * d1 + taps[1] * d2 + taps[0] * d3
            _store_row(grad_x_ptr, start + step + s, grad_x_time, channel, T, end, grad_x)
            x0, x1, x2 = x1, x2, x3
            d0, d1, d2 = d1, d2, d3
    return sum0, sum1, sum2, sum3, sum_bias


@triton.jit(**ANY)
def convolution_backward_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    grad_ptrs,
    grad_starts,  # the first channel of each part
    grad_strides,  # of its batch and time
    grad_x_ptr,
    sums_ptr,
    T,
    CHANNELS,  # of all parts
    group_size,
    weight_group,
    weight_channel,
    bias_group,
    x_batch,
    x_time,
    grad_x_batch,
    grad_x_time,
    eps,
    NORMED: tl.constexpr,  # how many of the parts get unit norm; they come first
    TAPS: tl.constexpr,
    ROWS,
    STREAMS: tl.constexpr,
    UNROLL: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    batch = tl.program_id(2).to(tl.int64)
    group = batch // group_size
    first, channel, end, start = _place(CHANNELS, ROWS, STREAMS, WIDTH, BLOCK_C)
    x, grad_x = (x_ptr + batch * x_batch, x_time), (grad_x_ptr + batch * grad_x_batch, grad_x_time)
    grad = _part(grad_ptrs, grad_starts, grad_strides, batch, first)
    weight_ptr += group * weight_group
    if bias_ptr is not None:
        bias_ptr += group * bias_group
    taps = _taps(weight_ptr, bias_ptr, channel, end, weight_channel, TAPS)
    # One call in all: for each access Triton's layouts go through all others, which for two took 7 s.
    if NORMED == 0:
        is_normed = False
    elif len(grad_ptrs) == NORMED:
        is_normed = True
    else:
        is_normed = first < grad_starts[NORMED]
    sums = _backward_rows(*x, *grad, *grad_x, taps, start, channel, end, T, eps, ROWS, is_normed, UNROLL)

    program = batch * tl.num_programs(1) + tl.program_id(1)
    is_channel = channel < end
    if bias_ptr is None:
        sums_ptr += program * TAPS * CHANNELS
    else:
        sums_ptr += program * (TAPS + 1) * CHANNELS
        tl.store(sums_ptr + TAPS * CHANNELS + channel, tl.sum(sums[4], axis=0, keep_dims=True), mask=is_channel)
    for tap in tl.static_range(4 - TAPS, 4):
        of_tap = tl.sum(sums[tap], axis=0, keep_dims=True)
        tl.store(sums_ptr + channel * TAPS + (tap + TAPS - 4), of_tap, mask=is_channel)


def _tile(length: int, width: int, rows: int) -> dict[str, int]:
    """The tile of a program, with no more rows (in steps of UNROLL) than cover the sequence."""
    block = triton.next_power_of_2(width)
    streams = ACROSS // block
    rows = min(rows, UNROLL * triton.cdiv(max(1, length), UNROLL * streams))
    return {"ROWS": rows, "STREAMS": streams, "UNROLL": UNROLL, "WIDTH": width, "BLOCK_C": block, "num_warps": 1}


def _parts(tensors: Sequence[Tensor]) -> tuple[tuple, tuple, tuple]:
    """What the kernels take for parts `[batch, T, channels]`: these, their first channels and their strides."""
    *starts, _ = accumulate((x.shape[2] for x in tensors), initial=0)
    return tuple(tensors), tuple(starts), tuple(x.stride()[:2] for x in tensors)


def forward(x, weight, bias: Tensor | None, ys: Sequence[Tensor], width=BLOCK_C, normed=0, eps=0.0) -> None:
    """Writes the convolution to `ys`, contiguous `[batch, T, channels]`, each some channels of `x`.

    If there are heads, all have this `width`. Those of the first `normed` get unit norm, `y / sqrt(|y|^2 + eps)`.
    """
    batch, length, _ = x.shape
    x, weight, bias = _readable(x, weight, bias)
    channels = weight.shape[1]
    tile = _tile(length, width, FORWARD_ROWS)
    programs = triton.cdiv(length, tile["ROWS"] * tile["STREAMS"])
    convolution_forward_kernel[triton.cdiv(channels, width), programs, batch](
        *(x, weight, bias, *_parts(ys)),
        *(length, channels, batch // weight.shape[0]),
        *(*weight.stride()[:2], 0 if bias is None else bias.stride(0), *x.stride()[:2], eps),
        NORMED=normed,
        TAPS=weight.shape[2],
        **tile,
    )


def backward(grads, x, weight, bias: Tensor | None, grad_x, width=BLOCK_C, normed=0, eps=0.0) -> Tensor:
    """Writes `grad_x`, whose last stride is one, from the gradients of `ys`; returns those of the parameters.

    These are `[groups, channels * (taps + 1)]`, of the weight and then of the bias, or `[groups, channels * taps]`
    without a bias. No atomics: they have the same bits every time.
    """
    batch, length, _ = x.shape
    groups, channels, taps = weight.shape
    x, weight, bias = _readable(x, weight, bias)
    tile = _tile(length, width, BACKWARD_ROWS)
    programs = triton.cdiv(length, tile["ROWS"] * tile["STREAMS"])
    per_channel = taps if bias is None else taps + 1
    sums = torch.empty((groups, batch // groups * programs, per_channel * channels), device=x.device)
    convolution_backward_kernel[triton.cdiv(channels, width), programs, batch](
        *(x, weight, bias, *_parts(grads), grad_x, sums),
        *(length, channels, batch // groups),
        *(*weight.stride()[:2], 0 if bias is None else bias.stride(0), *x.stride()[:2], *grad_x.stride()[:2], eps),
        NORMED=normed,
        TAPS=taps,
        **tile,
    )
    return sum_parts(sums, torch.float32)


def _readable(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    return addressable(x), addressable(weight), None if bias is None else addressable(bias)
