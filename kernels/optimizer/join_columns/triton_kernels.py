"""`join_columns` in Triton. A program copies one block of one part; a table on the device says which."""

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 4
MOST_PARTS = 64  # of a launch: the kernel has a branch for each


@triton.jit
def _join_columns_kernel(parts, strides, joined, table, size, BLOCK: tl.constexpr):
    replica = tl.program_id(1).to(tl.int64)
    entry = table + 4 * tl.program_id(0)
    part, start, length, column = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    at = start + tl.arange(0, BLOCK)
    target = joined + replica * size + column + at
    for i in tl.static_range(len(parts)):
        if part == i:
            value = tl.load(parts[i] + replica * strides[i] + at, mask=at < length, other=0.0)
            tl.store(target, value, mask=at < length)


@cache  # without a limit: a captured graph reads its table by address, but does not keep it alive
def _table(lengths: tuple[int, ...], column: int, device: torch.device) -> Tensor:
    """For each block its part, its start in that part, the part's length, and the part's first column; int32.

    The first part begins at `column`.
    """
    entries = []
    for part, length in enumerate(lengths):
        entries += [(part, start, length, column) for start in range(0, length, BLOCK)]
        column += length
    return torch.tensor(entries, dtype=torch.int32, device=device)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """`join_columns` to float32, of arguments that have been checked."""
    replicas, device = len(parts[0]), parts[0].device
    result = torch.empty((replicas, sum(part[0].numel() for part in parts)), device=device)
    column = 0
    for first in range(0, len(parts), MOST_PARTS):
        some = tuple(part if part[0].is_contiguous() else part.contiguous() for part in parts[first:][:MOST_PARTS])
        lengths = tuple(part[0].numel() for part in some)
        table = _table(lengths, column, device)
        _join_columns_kernel[len(table), replicas](
            some, tuple(part.stride(0) for part in some), result, table, result.shape[1], BLOCK=BLOCK, num_warps=WARPS
        )
        column += sum(lengths)
    return result
