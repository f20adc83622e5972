"""Rotary embedding inside the kernels: rotates pairs (i, i + D/2) of a head by position times frequency, and back.

And back through the norm in front of it.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_attention import prefetch
from mixerlab.kernels.common.triton_halves import beside, left_right

PER_RADIAN = tl.constexpr(0.15915493667125702)  # revolutions: 1 / (2 pi) in float32, and what it lacks
PER_RADIAN_REST = tl.constexpr(6.4206e-09)
REVOLUTION = tl.constexpr(6.283185307179586)


@triton.jit
def _hardware(name: tl.constexpr, x):
    """`cos` or `sin` by the special function unit: its error is 2^-20 from -pi to pi, where x is, but for rounding."""
    return tl.inline_asm_elementwise(
        name + ".approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def rotation(frequency, group, positions, D: tl.constexpr, EXACT: tl.constexpr):
    """Cosines and sines `[positions, D / 2]`; `frequency` is `[groups, D / 2]`, in radians per position.

    If not EXACT, whole revolutions are dropped and the special function unit computes the rest, with an error of about
    2^-20: enough for 16-bit tensors.
    """
    radians = tl.load(frequency + group * (D // 2) + tl.arange(0, D // 2))[None, :]
    position = positions.to(tl.float32)[:, None]
    if EXACT:
        angle = position * radians
        return tl.cos(angle), tl.sin(angle)
    revolutions = radians * PER_RADIAN
    rest = tl.fma(radians, PER_RADIAN, -revolutions) + radians * PER_RADIAN_REST
    whole = tl.floor(position * revolutions + 0.5)
    angle = (tl.fma(position, revolutions, -whole) + position * rest) * REVOLUTION
    return _hardware("cos", angle), _hardware("sin", angle)


@triton.jit
def rotate_back(tile, frequency, group, positions, ROWS: tl.constexpr, D: tl.constexpr, EXACT: tl.constexpr):
    """`[ROWS, D]` of one head with the pairs of each position rotated back, without moving data between threads."""
    cos, sin = rotation(frequency, group, positions, D, EXACT)
    first, second = left_right(tile, ROWS, D // 2)
    return beside(first * cos + second * sin, second * cos - first * sin, ROWS, D // 2)


@triton.jit
def prefetch_rows(x, strides, batch, head, rows, seq_len, D: tl.constexpr, EXACT: tl.constexpr):
    """Brings what `load_rows` will read into the second-level cache. Not in the interpreter, which has none."""
    if not EXACT:
        SECTOR: tl.constexpr = 16  # elements of 32 bytes
        at = batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[2]
        at += (
            tl.minimum(rows, seq_len - 1).to(tl.int64)[:, None] * strides[1]
            + tl.arange(0, D // SECTOR)[None, :] * SECTOR
        )
        prefetch(x + at)


@triton.jit
def norm_back(d_y, x, gain, sums, eps, D: tl.constexpr):
    """The gradient of rows `[rows, D]` of x from that of `x / sqrt(mean(x^2) + eps) * gain`, with the gain `[D]`.

    Writes that of the gain, summed over these rows, to `sums`. Rows outside the sequence are zero in both.
    """
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]
    x *= scale
    of_gain = tl.sum(d_y * x, 0)
    d_y *= gain[None, :]
    d_x = scale * (d_y - x * (tl.sum(d_y * x, 1) / D)[:, None])
    tl.store(sums + tl.arange(0, D), of_gain)
    return d_x


@triton.jit
def rotate_heads(
    packed, frequency, group, positions, ROWS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, EXACT: tl.constexpr
):
    """`[ROWS, HEADS D]` with the pairs of each head rotated, without moving data between threads."""
    cos, sin = rotation(frequency, group, positions, D, EXACT)
    cos, sin = cos[:, None, :], sin[:, None, :]
    first, second = tl.split(tl.permute(tl.reshape(packed, (ROWS, HEADS, 2, D // 2)), (0, 1, 3, 2)))
    rotated = tl.join(first * cos - second * sin, second * cos + first * sin)
    return tl.reshape(tl.permute(rotated, (0, 1, 3, 2)), (ROWS, HEADS * D))
