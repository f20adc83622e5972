"""Blocks on the diagonal of square matrices, as tiles `[N, B, B]`."""

import triton
import triton.language as tl


@triton.jit
def joined(blocks, corner, N: tl.constexpr, B: tl.constexpr):
    """`[[above, 0], [corner, below]]`, `[N, 2 B, 2 B]`, from the blocks above and below in turn, `[2 N, B, B]`."""
    half = tl.arange(0, 2)
    row, column = half[None, :, None, None, None], half[None, None, None, :, None]
    both = tl.where(row == column, tl.reshape(blocks, [N, 2, B, 1, B]), 0.0)
    both += tl.where(row > column, tl.reshape(corner, [N, 1, B, 1, B]), 0.0)
    return tl.reshape(both, [N, 2 * B, 2 * B])


@triton.jit
def whole(above, below, N: tl.constexpr, B: tl.constexpr, W: tl.constexpr):
    """The rows `[2 N B, W]` of which these are the even and the odd blocks, `[N, B, W]`."""
    return tl.reshape(tl.permute(tl.join(above, below), (0, 3, 1, 2)), [2 * N * B, W])


@triton.jit
def store_blocks(
    pointer, blocks, index, row, column, N: tl.constexpr, B: tl.constexpr, S: tl.constexpr, C: tl.constexpr
):
    """Writes `[N, B, B]` into matrix `index`, the first block to (row, column) and the next ones S behind in both."""
    start, i = tl.arange(0, N)[:, None, None] * S, tl.arange(0, B)
    at = index * C * C + (start + row + i[None, :, None]) * C + start + column + i[None, None, :]
    tl.store(pointer + at, blocks.to(pointer.dtype.element_ty))
