"""Sums of the float32 parts that the programs of one launch wrote: no atomics, the same bits every time.

The result stays in float32, and one tile serves any number of parts: so the short convolution and the selective scan
were timed. `kernels/fused/triton_sums.py` rounds, and takes its tile by the number of parts; whether that is as fast
for these two has not been measured.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, PARTS = 64, 64  # numbers of a program, and parts that it loads at once


@triton.jit
def _sum_float32_parts_kernel(parts_ptr, sums_ptr, parts, size, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    group = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        share = parts_ptr + (group * parts + part)[:, None] * size + at[None, :]
        total += tl.sum(tl.load(share, mask=(part < parts)[:, None] & (at < size)[None, :], other=0.0), axis=0)
    tl.store(sums_ptr + group * size + at, total, mask=at < size)


def sum_float32_parts(parts: Tensor) -> Tensor:
    """The sums over axis 1 of contiguous float32 `[groups, parts, size]`: float32 `[groups, size]`."""
    groups, count, size = parts.shape
    sums = torch.empty((groups, size), dtype=parts.dtype, device=parts.device)
    _sum_float32_parts_kernel[(triton.cdiv(size, BLOCK), groups)](
        parts, sums, count, size, BLOCK=BLOCK, PARTS=PARTS, num_warps=4
    )
    return sums
