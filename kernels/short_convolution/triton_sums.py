"""Sums of the float32 shares that the programs of one launch wrote: no atomics, the same bits every time."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, PARTS = 64, 64  # numbers of a program, and shares that it loads at once


@triton.jit
def _sum_kernel(parts_ptr, sums_ptr, parts, size, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    group = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        share = parts_ptr + (group * parts + part)[:, None] * size + at[None, :]
        total += tl.sum(tl.load(share, mask=(part < parts)[:, None] & (at < size)[None, :], other=0.0), axis=0)
    tl.store(sums_ptr + group * size + at, total, mask=at < size)


def sum_parts(parts: Tensor) -> Tensor:
    """`[groups, parts, size]`, contiguous float32, to `[groups, size]`."""
    groups, count, size = parts.shape
    sums = torch.empty((groups, size), dtype=parts.dtype, device=parts.device)
    _sum_kernel[(triton.cdiv(size, BLOCK), groups)](parts, sums, count, size, BLOCK=BLOCK, PARTS=PARTS, num_warps=4)
    return sums
