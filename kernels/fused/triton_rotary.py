"""Triton kernel of the rotary embedding: a tile of (sequence, head) rows by positions by pairs.

Sines and cosines cost more than moving the data, so a program computes them once for all its rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.layout import addressable

ROWS, TILE, WARPS = 4, 4096, 4  # TILE: pairs; a thread keeps the rows of its 8 angles


@triton.jit(do_not_specialize=["ROW_COUNT", "T"])
def _kernel(
    x_ptr,
    frequency_ptr,
    y_ptr,
    direction,
    ROW_COUNT,
    T,
    H,
    x_batch,
    x_time,
    x_head,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_T: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    time = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    pair = tl.arange(0, BLOCK_HALF)
    frequency = tl.load(frequency_ptr + pair, mask=pair < HALF, other=0.0)
    angle = direction * time.to(tl.float32)[:, None] * frequency[None, :]
    cos, sin = tl.cos(angle)[None, :, :], tl.sin(angle)[None, :, :]

    batch, head = (row // H).to(tl.int64), row % H
    x_rows = x_ptr + (batch * x_batch + head * x_head)[:, None, None]
    y_rows = y_ptr + (batch * T * H + head)[:, None, None] * (2 * HALF)
    mask = (row < ROW_COUNT)[:, None, None] & (time < T)[None, :, None] & (pair < HALF)[None, None, :]
    x_at = time[None, :, None] * x_time + pair[None, None, :]
    y_at = time[None, :, None] * (H * 2 * HALF) + pair[None, None, :]
    first = tl.load(x_rows + x_at, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_rows + x_at + HALF, mask=mask, other=0.0).to(tl.float32)
    dtype = y_ptr.dtype.element_ty
    tl.store(y_rows + y_at, (first * cos - second * sin).to(dtype), mask=mask)
    tl.store(y_rows + y_at + HALF, (second * cos + first * sin).to(dtype), mask=mask)


def rotate(x: Tensor, inverse_frequency: Tensor, direction: float) -> Tensor:
    """`rotate` of `kernels.fused.rotary`."""
    batch, length, heads, width = x.shape
    x = addressable(x)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = width // 2
    block = triton.next_power_of_2(half)
    block_t = max(1, TILE // (ROWS * block))
    if x.numel():
        _kernel[triton.cdiv(batch * heads, ROWS), triton.cdiv(length, block_t)](
            x,
            inverse_frequency.contiguous(),
            y,
            direction,
            batch * heads,
            length,
            heads,
            *x.stride()[:3],
            HALF=half,
            BLOCK_HALF=block,
            BLOCK_T=block_t,
            ROWS=ROWS,
            num_warps=WARPS,
        )
    return y
