"""A Triton kernel that adds up the parts of a weight's gradient, in the same order every time.

Each block of elements has its own program. If the last program of the kernel that wrote the parts added them up, a
single multiprocessor would have to read all parts of a tile, up to 8 MB.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# bfloat16 elements of the widest load. Sizes and strides are passed as multiples of it, or of the largest power of two
# that divides them, so that the compiler knows how they are aligned.
UNIT = 8
# (largest number of parts, parts and elements that a program loads at once): 32 elements a thread.
TILES = ((32, 8, 512), (64, 64, 64), (math.inf, 256, 16))
WARPS = 4
# Of more parts than this, stretches are added up first, as many as divide this number: else too few programs run.
MOST_PARTS, STRETCHES = 1024, 32


@triton.jit(do_not_specialize=["parts", "units"])
def _sum_parts_kernel(
    parts_ptr,
    sums_ptr,
    parts,
    units,  # elements of a part / UNIT
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
    tl.store(sums_ptr + group * size + at, total, mask=at < size)


def sum_parts(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums over axis 1 of contiguous `[groups, parts, ...]`, in float32: `[groups, ...]`, rounded to `dtype`."""
    groups, count, *shape = parts.shape
    if count == 1 and parts.dtype == dtype:
        return parts[:, 0]
    if count > MOST_PARTS and (stretches := math.gcd(count, STRETCHES)) > 1:
        first = sum_parts(parts.view(groups * stretches, count // stretches, *shape), torch.float32)
        return sum_parts(first.view(groups, stretches, *shape), dtype)
    sums = torch.empty((groups, *shape), dtype=dtype, device=parts.device)
    size = math.prod(shape)
    unit = math.gcd(UNIT, size)
    in_flight, block = next(tile[1:] for tile in TILES if count <= tile[0])
    if sums.numel():
        _sum_parts_kernel[triton.cdiv(size, block), groups](
            parts, sums, count, size // unit, UNIT=unit, PARTS=in_flight, BLOCK=block, num_warps=WARPS
        )
    return sums
