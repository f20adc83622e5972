"""Triton kernel of `split_heads`, both ways: a program moves every part of some positions of one sequence.

So it reads, or writes, whole rows of the packed tensor, and computes the sines and cosines of a position once for all
heads that are rotated.

The gradients of gains are sums over all positions. In their backward a fixed number of programs stride over blocks of
positions, so that each keeps its part of the sums in registers; the parts are added up afterwards. No atomics: the
result has the same bits every time. The backward computes the scale of a head again; only the input is saved.
"""

from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.addressing import addressable, whole_rows
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.fused.heads.parts import UNIT_NORM_EPS, Form, Part, columns_of, views

TILE, ROTATED_TILE, WARPS = 2048, 1024, 4  # elements of the largest part; fewer if threads also hold angles
MAX_BLOCK_T = 64
VECTOR = 8  # elements: 16 bytes of bfloat16
# For each multiprocessor, of all groups together. As compiled for an H100, up to 128 registers a thread let four run at
# once. Parts of gradients are 1.6 % of the bytes that the backward moves for one replica at B = 128, T = 128 with two
# heads of 64, 0.2 % at T = 1024, and at most 6 % if each program has one block (T = 32).
SUMMING_PROGRAMS = 4
# One build for any number of replicas, and for gains at any place among the population's parameters.
ANY = {"do_not_specialize": ["T", "sequences", "gain_group"], "do_not_specialize_on_alignment": ["gains_ptr"]}

# What the kernel does with a part, in the forward or in the backward of its form.
_COPY, _ROTARY, _UNIT_NORM, _UNIT_NORM_GRADIENT, _ZERO = (tl.constexpr(i) for i in range(5))
_RMS_NORM, _RMS_NORM_GRADIENT, _RMS_NORM_ROTARY, _RMS_NORM_ROTARY_GRADIENT = (tl.constexpr(i) for i in range(5, 9))
_FORWARD = {
    Form.COPY: _COPY,
    Form.ROTARY: _ROTARY,
    Form.UNIT_NORM: _UNIT_NORM,
    Form.RMS_NORM: _RMS_NORM,
    Form.RMS_NORM_ROTARY: _RMS_NORM_ROTARY,
}
_BACKWARD = {
    Form.VIEW: _COPY,
    Form.COPY: _COPY,
    Form.ROTARY: _ROTARY,
    Form.UNIT_NORM: _UNIT_NORM_GRADIENT,
    Form.RMS_NORM: _RMS_NORM_GRADIENT,
    Form.RMS_NORM_ROTARY: _RMS_NORM_ROTARY_GRADIENT,
}
_UNIT_NORM_EPS = tl.constexpr(UNIT_NORM_EPS)


@triton.jit
def _at(ptr, batch, time, head, strides, UNIT: tl.constexpr):
    """Pointers to the first columns of heads `[BLOCK_T, BLOCK_H, 1]`; `strides` count UNITs of elements."""
    rows = time[:, None, None] * strides[1] + head[None, :, None] * strides[2]
    return ptr + batch * (strides[0] * UNIT) + rows * UNIT


@triton.jit
def _load(ptr, mask):
    return tl.load(ptr, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _rotated(first, second, cos, sin):
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _mean(x, WIDTH: tl.constexpr):
    """Of each head, `[BLOCK_T, BLOCK_H, 1]`."""
    return (tl.sum(x, axis=2) / WIDTH)[:, :, None]


@triton.jit
def _move(
    source_ptr, target_ptr, x_ptr,
    source_strides, target_strides, x_strides,
    gain,  # a tuple of `[1, 1, BLOCK_W]`: one, or both halves of a head that is rotated; empty if the part has none
    sums,  # the same of `[BLOCK_T, BLOCK_H, BLOCK_W]`: the gradient of the gain, not added up yet
    cos, sin, eps, batch, time, T,
    ACTION: tl.constexpr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr,
    WIDTH: tl.constexpr,  # half a head if it is rotated
    BLOCK_W: tl.constexpr, SOURCE_UNIT: tl.constexpr, TARGET_UNIT: tl.constexpr, X_UNIT: tl.constexpr,
):  # fmt: skip
    """Returns `sums` with those of these positions. Elements that are masked are zero, and so add nothing."""
    head, column = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_W)
    mask = (time < T)[:, None, None] & (head < HEADS)[None, :, None] & (column < WIDTH)[None, None, :]
    source = _at(source_ptr, batch, time, head, source_strides, SOURCE_UNIT) + column[None, None, :]
    target = _at(target_ptr, batch, time, head, target_strides, TARGET_UNIT) + column[None, None, :]
    x_at = _at(x_ptr, batch, time, head, x_strides, X_UNIT) + column[None, None, :]
    if ACTION == _ZERO:
        tl.store(target, 0.0, mask=mask)
    elif ACTION == _ROTARY:
        first, second = _rotated(_load(source, mask), _load(source + WIDTH, mask), cos, sin)
        tl.store(target, first, mask=mask)
        tl.store(target + WIDTH, second, mask=mask)
    elif ACTION == _UNIT_NORM:
        x = _load(source, mask)
        tl.store(target, x * tl.rsqrt(tl.sum(x * x, axis=2) + _UNIT_NORM_EPS)[:, :, None], mask=mask)
    elif ACTION == _UNIT_NORM_GRADIENT:
        x = _load(x_at, mask)
        grad = _load(source, mask)
        scale = tl.rsqrt(tl.sum(x * x, axis=2) + _UNIT_NORM_EPS)[:, :, None]
        x *= scale
        tl.store(target, scale * (grad - x * tl.sum(grad * x, axis=2)[:, :, None]), mask=mask)
    elif ACTION == _RMS_NORM:
        x = _load(source, mask)
        tl.store(target, x * tl.rsqrt(_mean(x * x, WIDTH) + eps) * gain[0], mask=mask)
    elif ACTION == _RMS_NORM_ROTARY:
        first, second = _load(source, mask), _load(source + WIDTH, mask)
        scale = tl.rsqrt(_mean(first * first + second * second, 2 * WIDTH) + eps)
        first, second = _rotated(first * scale * gain[0], second * scale * gain[1], cos, sin)
        tl.store(target, first, mask=mask)
        tl.store(target + WIDTH, second, mask=mask)
    elif ACTION == _RMS_NORM_GRADIENT:
        x = _load(x_at, mask)
        grad = _load(source, mask)
        scale = tl.rsqrt(_mean(x * x, WIDTH) + eps)
        x *= scale
        sums = (sums[0] + grad * x,)
        grad *= gain[0]
        tl.store(target, scale * (grad - x * _mean(grad * x, WIDTH)), mask=mask)
    elif ACTION == _RMS_NORM_ROTARY_GRADIENT:
        first, second = _load(x_at, mask), _load(x_at + WIDTH, mask)
        grad_first, grad_second = _rotated(_load(source, mask), _load(source + WIDTH, mask), cos, sin)
        scale = tl.rsqrt(_mean(first * first + second * second, 2 * WIDTH) + eps)
        first *= scale
        second *= scale
        sums = (sums[0] + grad_first * first, sums[1] + grad_second * second)
        grad_first *= gain[0]
        grad_second *= gain[1]
        mean = _mean(grad_first * first + grad_second * second, 2 * WIDTH)
        tl.store(target, scale * (grad_first - first * mean), mask=mask)
        tl.store(target + WIDTH, scale * (grad_second - second * mean), mask=mask)
    else:
        tl.store(target, _load(source, mask), mask=mask)
    return sums


@triton.jit
def _move_all(
    sources, targets, xs, source_strides, target_strides, x_strides, gains, sums, frequency_ptr, direction, eps,
    batch, first, T,
    ACTIONS: tl.constexpr, HEADS: tl.constexpr, BLOCK_H: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr,
    SOURCE_UNIT: tl.constexpr, TARGET_UNIT: tl.constexpr, X_UNIT: tl.constexpr,
    HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """`_move` of every part, for the positions from `first` on."""
    time = first + tl.arange(0, BLOCK_T)
    cos, sin = None, None
    if HALF:
        # Not in `_move`: after a store the compiler would load the frequencies and compute the sines again.
        pair = tl.arange(0, BLOCK_HALF)
        frequency = tl.load(frequency_ptr + pair, mask=pair < HALF, other=0.0)
        angle = direction * time.to(tl.float32)[:, None] * frequency[None, :]
        cos, sin = tl.cos(angle)[:, None, :], tl.sin(angle)[:, None, :]
    new_sums: tl.tuple = ()
    for i in tl.static_range(len(ACTIONS)):
        of_part = _move(
            sources[i], targets[i], xs[i], source_strides[i], target_strides[i], x_strides[i],
            gains[i], sums[i], cos, sin, eps, batch, time, T,
            ACTIONS[i], HEADS[i], BLOCK_H[i], WIDTH[i], BLOCK_W[i], SOURCE_UNIT[i], TARGET_UNIT[i], X_UNIT[i],
        )  # fmt: skip
        new_sums += (of_part,)
    return new_sums


@triton.jit
def _load_pieces(ptr, at, PIECES: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    """The gain of a part in its pieces, `[1, 1, BLOCK_W]` each; see `_move`."""
    column = tl.arange(0, BLOCK_W)
    pieces: tl.tuple = ()
    for i in tl.static_range(PIECES):
        pieces += (_load(ptr + at + i * WIDTH + column, column < WIDTH)[None, None, :],)
    return pieces


@triton.jit
def _no_sums(PIECES: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_W: tl.constexpr):
    pieces: tl.tuple = ()
    for _ in tl.static_range(PIECES):
        pieces += (tl.zeros((BLOCK_T, BLOCK_H, BLOCK_W), dtype=tl.float32),)
    return pieces


@triton.jit
def _store_sums(ptr, at, sums, PIECES: tl.constexpr, WIDTH: tl.constexpr, BLOCK_W: tl.constexpr):
    column = tl.arange(0, BLOCK_W)
    for i in tl.static_range(PIECES):
        total = tl.sum(tl.sum(sums[i], axis=0), axis=0)  # over positions, then heads
        tl.store(ptr + at + i * WIDTH + column, total, mask=column < WIDTH)


@triton.jit(**ANY)
def _split_heads_kernel(
    sources,
    targets,
    xs,
    source_strides,
    target_strides,
    x_strides,
    frequency_ptr,
    direction,
    gains_ptr,  # None if no part has a gain
    sums_ptr,  # of each group and program: the gradients of the gains; None in the forward, or without gains
    gain_group,
    eps,  # of the norms with gains
    sequences,  # of each group
    T,
    ACTIONS: tl.constexpr,  # of each part, as those below; see `_move`
    HEADS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_W: tl.constexpr,
    SOURCE_UNIT: tl.constexpr,
    TARGET_UNIT: tl.constexpr,
    X_UNIT: tl.constexpr,
    GAIN_PIECES: tl.constexpr,  # 0 without a gain, 2 for one of heads that are rotated, else 1
    GAIN_AT: tl.constexpr,  # where it begins among those of its group
    GAINS: tl.constexpr,  # elements of them together
    HALF: tl.constexpr,  # of the width of a head that is rotated; 0 if there is none
    BLOCK_HALF: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    if sums_ptr is None:
        batch = tl.program_id(0).to(tl.int64)
        group = batch // sequences  # only read if there are gains
    else:
        group = tl.program_id(1).to(tl.int64)
    gains: tl.tuple = ()
    sums: tl.tuple = ()
    for i in tl.static_range(len(ACTIONS)):
        at = group * gain_group + GAIN_AT[i]
        gains += (_load_pieces(gains_ptr, at, GAIN_PIECES[i], WIDTH[i], BLOCK_W[i]),)
        sums += (_no_sums(GAIN_PIECES[i], BLOCK_T, BLOCK_H[i], BLOCK_W[i]),)  # the forward leaves them so
    if sums_ptr is None:
        _move_all(
            sources, targets, xs, source_strides, target_strides, x_strides, gains, sums, frequency_ptr, direction, eps,
            batch, tl.program_id(1) * BLOCK_T, T,
            ACTIONS, HEADS, BLOCK_H, WIDTH, BLOCK_W, SOURCE_UNIT, TARGET_UNIT, X_UNIT, HALF, BLOCK_HALF, BLOCK_T,
        )  # fmt: skip
    else:
        part, parts = tl.program_id(0), tl.num_programs(0)
        blocks = tl.cdiv(T, BLOCK_T)  # of a sequence
        for block in tl.range(part, sequences * blocks, parts, num_stages=2):  # loads the next one early
            sums = _move_all(
                sources, targets, xs, source_strides, target_strides, x_strides, gains, sums, frequency_ptr, direction,
                eps, group * sequences + block // blocks, block % blocks * BLOCK_T, T,
                ACTIONS, HEADS, BLOCK_H, WIDTH, BLOCK_W, SOURCE_UNIT, TARGET_UNIT, X_UNIT, HALF, BLOCK_HALF, BLOCK_T,
            )  # fmt: skip
        for i in tl.static_range(len(ACTIONS)):
            at = (group * parts + part) * GAINS + GAIN_AT[i]
            _store_sums(sums_ptr, at, sums[i], GAIN_PIECES[i], WIDTH[i], BLOCK_W[i])


class _Move(NamedTuple):
    """What happens to one part `x` of `packed`: `action` takes `source` to `target`. All are `[B, T, heads, width]`."""

    form: Form
    action: tl.constexpr
    source: Tensor
    target: Tensor
    x: Tensor


def split(
    packed: Tensor,
    inverse_frequency: Tensor | None,
    parts: Sequence[Part],
    results: Sequence[Tensor],
    gains: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Writes the `results`, which `split_heads` gives for those of `parts` that are not views."""
    packed = addressable(packed)
    remaining = iter(results)
    moves = [
        _Move(part.form, _FORWARD[part.form], x, next(remaining), x)
        for part, x in zip(parts, views(packed, parts), strict=True)
        if part.form != Form.VIEW
    ]
    _launch(moves, packed, inverse_frequency, gains, eps)


def split_backward(
    grads: Sequence[Tensor],
    packed: Tensor,
    inverse_frequency: Tensor | None,
    parts: Sequence[Part],
    grad_packed: Tensor,
    gains: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor | None:
    """Writes `grad_packed`, whose columns have stride one, and returns the gradient of `gains`, if there are any.

    This is `split_backward` of `kernels.fused.heads.operator`.
    """
    packed = addressable(packed)
    targets, xs = views(grad_packed, parts), views(packed, parts)
    moves = [
        _Move(part.form, _BACKWARD[part.form], addressable(grad), target, x)
        for part, grad, target, x in zip(parts, grads, targets, xs, strict=True)
    ]
    padding = grad_packed[..., None, columns_of(parts) :]
    if padding.shape[-1]:
        moves.append(_Move(Form.VIEW, _ZERO, padding, padding, padding))
    return _launch(moves, packed, inverse_frequency, gains, eps, is_backward=True)


def _launch(
    moves: list[_Move],
    packed: Tensor,
    inverse_frequency: Tensor | None,
    gains: Tensor | None,
    eps: float,
    *,
    is_backward: bool = False,
) -> Tensor | None:
    """Makes the moves. In the backward it returns the gradient of `gains`, if there are any."""
    if not packed.numel() or not moves:
        return torch.zeros_like(gains) if is_backward and gains is not None else None
    batch, length = packed.shape[:2]
    tensors = tuple(zip(*((move.source, move.target, move.x) for move in moves), strict=True))
    units = [tuple(map(_unit, group)) for group in tensors]
    strides = [
        tuple(tuple(s // unit for s in x.stride()[:3]) for x, unit in zip(group, of_group, strict=True))
        for group, of_group in zip(tensors, units, strict=True)
    ]
    is_rotated = [move.form.rotates for move in moves]
    heads, widths = zip(*(move.target.shape[2:] for move in moves), strict=True)
    largest = max(triton.next_power_of_2(h) * triton.next_power_of_2(w) for h, w in zip(heads, widths, strict=True))
    widths = tuple(w // 2 if is_half else w for w, is_half in zip(widths, is_rotated, strict=True))
    half = max((w for w, is_half in zip(widths, is_rotated, strict=True) if is_half), default=0)
    block_t = min(max(1, (ROTATED_TILE if half else TILE) // largest), MAX_BLOCK_T)
    blocks = triton.cdiv(length, block_t)
    grid, sums, groups, gain_width = (batch, blocks), None, 1, 0
    if gains is not None:
        gains = whole_rows(gains)
        groups, _, gain_width = gains.shape
        if is_backward:
            programs = min(batch // groups * blocks, max(1, SUMMING_PROGRAMS * processors(packed.device) // groups))
            sums = packed.new_empty((groups, programs, *gains.shape[1:]), dtype=torch.float32)
            grid = programs, groups
    has_gain = [move.form.has_gain for move in moves]
    _split_heads_kernel[grid](
        *tensors,
        *strides,
        inverse_frequency if inverse_frequency is None else inverse_frequency.contiguous(),
        -1.0 if is_backward else 1.0,
        gains,
        sums,
        0 if gains is None else gains.stride(0),
        eps,
        batch // groups,
        length,
        ACTIONS=tuple(move.action.value for move in moves),
        HEADS=heads,
        BLOCK_H=tuple(map(triton.next_power_of_2, heads)),
        WIDTH=widths,
        BLOCK_W=tuple(map(triton.next_power_of_2, widths)),
        SOURCE_UNIT=units[0],
        TARGET_UNIT=units[1],
        X_UNIT=units[2],
        GAIN_PIECES=tuple(1 + is_half if has else 0 for has, is_half in zip(has_gain, is_rotated, strict=True)),
        GAIN_AT=tuple(sum(has_gain[:i]) * gain_width for i in range(len(moves))),
        GAINS=sum(has_gain) * gain_width,
        HALF=half,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_T=block_t,
        num_warps=WARPS,
    )
    return None if gains is None or sums is None else sum_parts(sums, gains.dtype)


def _unit(x: Tensor) -> int:
    """A divisor of all strides but the last, up to VECTOR. The compiler does not know that it divides 544, say."""
    return gcd(VECTOR, *x.stride()[:3])
