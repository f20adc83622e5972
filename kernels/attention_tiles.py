"""What the kernels of softmax attention and of Parallax share: rows of a head in and out, products, short sequences."""

# ruff: noqa: RUF005 - Triton compiles sums of tuples, and no starred ones.

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def load_rows(x, strides, batch, head, rows, seq_len, head_dim, BLOCK_D: tl.constexpr):
    """The positions `rows` of one head of x `[B, T, H, D]` as `[rows, BLOCK_D]`; zeros outside the tensor.

    Loads that a program waits for once come this way: they are all under way before the first is used, where
    the copy engine's would follow one another.
    """
    columns = tl.arange(0, BLOCK_D)
    start = batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[2]
    at = start + rows.to(tl.int64)[:, None] * strides[1] + columns[None, :]
    return tl.load(x + at, mask=(rows < seq_len)[:, None] & (columns < head_dim)[None, :], other=0.0)


@triton.jit
def load_pair(
    x, x_strides, y, y_strides, batch, head, start, seq_len, head_dim, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """ROWS positions from `start` on of one head of x, and below them those of y: `[2 ROWS, BLOCK_D]`, as `load_rows`.

    One product with both takes fewer registers than two products.
    """
    both = tl.arange(0, 2 * ROWS)
    rows = start + both % ROWS
    columns = tl.arange(0, BLOCK_D)
    x += batch.to(tl.int64) * x_strides[0] + head.to(tl.int64) * x_strides[2]
    y += batch.to(tl.int64) * y_strides[0] + head.to(tl.int64) * y_strides[2]
    at = tl.where(both < ROWS, x + rows.to(tl.int64) * x_strides[1], y + rows.to(tl.int64) * y_strides[1])
    inside = (rows < seq_len)[:, None] & (columns < head_dim)[None, :]
    return tl.load(at[:, None] + columns[None, :], mask=inside, other=0.0)


@triton.jit
def load_sequence(
    x, strides, batch, head, seq_len, head_dim, TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    """All positions of one head, as a tuple of `TILES` tiles `[BLOCK, BLOCK_D]`."""
    tiles = ()
    for i in tl.static_range(TILES):
        rows = i * BLOCK + tl.arange(0, BLOCK)
        tiles = tiles + (load_rows(x, strides, batch, head, rows, seq_len, head_dim, BLOCK_D),)
    return tiles


@triton.jit
def store_rows(x, strides, batch, head, rows, tile, seq_len, head_dim, BLOCK_D: tl.constexpr):
    """Writes `[rows, BLOCK_D]` at the positions `rows` of one head; what lies outside the tensor is dropped."""
    columns = tl.arange(0, BLOCK_D)
    start = batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[2]
    at = start + rows.to(tl.int64)[:, None] * strides[1] + columns[None, :]
    inside = (rows < seq_len)[:, None] & (columns < head_dim)[None, :]
    tl.store(x + at, tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def product(a, b, total=None):
    """a b, added to `total`, in float32: full products for float32 tiles, on the matrix units for shorter ones."""
    return tl.dot(a, b, total, input_precision="ieee")


def padded_head_dim(head_dim: int) -> int:
    """The width of a tile: the next power of two, 16 at least, as matrix products want it."""
    return max(16, triton.next_power_of_2(head_dim))


def with_strides(*tensors: Tensor) -> list[Tensor | tuple[int, ...]]:
    """Each tensor and its strides, as kernels take them."""
    return [argument for x in tensors for argument in (x, x.stride())]


def short_constants(q: Tensor, block: int) -> dict:
    """The compile-time arguments of a kernel that holds a whole sequence as tiles of `block` positions."""
    return {
        "TILES": triton.cdiv(q.shape[1], block),
        "BLOCK": block,
        "BLOCK_D": padded_head_dim(q.shape[3]),
        "num_warps": block // 16,  # a warp holds 16 rows of weights
    }
