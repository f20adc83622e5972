"""Queries, keys, values and probes of a small vocabulary: looked up, and rotated by their positions."""

import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.addressing import whole_rows
from mixerlab.kernels.parallax.triton_rotation import rotation

TILE = 1024  # pairs of a tile: rows times half the width of a head
WARPS = 4


@triton.jit(do_not_specialize=["rows", "seq_len"])
def look_up_kernel(
    tokens, table, table_group, frequency, packed, rows, seq_len,
    HEADS: tl.constexpr, D: tl.constexpr, ROTATE_RHO: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A program looks up whole rows, so that it computes cosines and sines once for all heads."""
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (row < rows)[:, None]
    token = tl.load(tokens + group * rows + row, mask=row < rows, other=0)
    EXACT: tl.constexpr = packed.dtype.element_ty == tl.float32
    cos, sin = rotation(frequency, group, row % seq_len, D, EXACT)
    pair = tl.arange(0, D // 2)[None, :]
    source = table + group * table_group + token[:, None] * (4 * HEADS * D) + pair
    target = packed + (group * rows + row)[:, None] * (4 * HEADS * D) + pair
    for head in tl.static_range(4 * HEADS):
        first = tl.load(source + head * D, mask=inside)
        second = tl.load(source + head * D + D // 2, mask=inside)
        if head < 2 * HEADS or (ROTATE_RHO and head >= 3 * HEADS):
            first, second = first.to(tl.float32), second.to(tl.float32)
            first, second = first * cos - second * sin, second * cos + first * sin
        tl.store(target + head * D, first, mask=inside)
        tl.store(target + head * D + D // 2, second, mask=inside)


def run_look_up(
    tokens: Tensor, table: Tensor, inverse_frequency: Tensor, seq_len: int, heads: int, rotate_rho: bool
) -> Tensor:
    """Rows `tokens` `[groups, N]` of `table` `[groups, V, 4 heads D]`: q, k, v and rho, with q, k (and rho) rotated."""
    groups, rows = tokens.shape
    columns = table.shape[2]
    head_dim = columns // (4 * heads)
    table = whole_rows(table)
    packed = table.new_empty(groups, rows, columns)
    tile = TILE // (head_dim // 2)
    look_up_kernel[triton.cdiv(rows, tile), groups](
        *(tokens.contiguous(), table, table.stride(0), inverse_frequency.contiguous(), packed, rows, seq_len),
        HEADS=heads,
        D=head_dim,
        ROTATE_RHO=rotate_rho,
        ROWS=tile,
        num_warps=WARPS,
    )
    return packed
