"""A Triton kernel that adds up the parts of a weight's gradient, in the same order every time.

A program of its own for every block of numbers, not the last program of the kernel that wrote the parts: one
multiprocessor would read all parts of a tile alone, up to 8 MB.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

UNIT = 8  # bfloat16 numbers in the widest load: sizes and strides that it divides are passed in such units
TILES = ((8, 512), (64, 64), (256, 16))  # (parts, numbers) that a program has in flight: 32 numbers a thread
WARPS = 4


@triton.jit(do_not_specialize=["parts", "units"])
def _sum_kernel(
    parts_ptr,
    sums_ptr,
    parts,
    units,  # numbers of a part / UNIT
    UNIT: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = units.to(tl.int64) * UNIT
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        mask = (part < parts)[:, None] & (at < size)[None, :]
        total += tl.sum(
            tl.load(parts_ptr + (group * parts + part)[:, None] * size + at[None, :], mask=mask, other=0.0), axis=0
        )
    tl.store(sums_ptr + group * size + at, total.to(sums_ptr.dtype.element_ty), mask=at < size)


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums over axis 1 of contiguous float32 `[groups, parts, ...]`, rounded to `dtype`."""
    groups, count, *shape = parts.shape
    sums = torch.empty((groups, *shape), dtype=dtype, device=parts.device)
    size = math.prod(shape)
    unit = math.gcd(UNIT, size)
    most, block = next((tile for tile in TILES if tile[0] >= count), TILES[-1])
    if sums.numel():
        _sum_kernel[triton.cdiv(size, block), groups](
            parts, sums, count, size // unit, UNIT=unit, PARTS=most, BLOCK=block, num_warps=WARPS
        )
    return sums
