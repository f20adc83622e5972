"""What the attention kernels share: how tiles come and go, and which keys a query sees."""

# ruff: noqa: RUF005 - Triton compiles sums of tuples, and no starred ones.

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634


@triton.jit
def load_tile(desc, batch, head, row, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows `row .. row + ROWS` of one head as `[ROWS, BLOCK_D]`; zeros outside the tensor."""
    return desc.load([batch, head, row, 0]).reshape(ROWS, BLOCK_D)


@triton.jit
def load_rows(x, strides, batch, head, rows, seq_len, head_dim, BLOCK_D: tl.constexpr):
    """The positions `rows` of one head of x `[B, T, H, D]` as `[rows, BLOCK_D]`; zeros outside the tensor.

    Loads that a program waits for once come this way: they are all under way before the first is used, where
    the copy engine's would follow one another.
    """
    columns = tl.arange(0, BLOCK_D)
    start = batch.to(tl.int64) * strides[0] + head * strides[2]
    at = start + rows.to(tl.int64)[:, None] * strides[1] + columns[None, :]
    return tl.load(x + at, mask=(rows < seq_len)[:, None] & (columns < head_dim)[None, :], other=0.0)


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
    start = batch.to(tl.int64) * strides[0] + head * strides[2]
    at = start + rows.to(tl.int64)[:, None] * strides[1] + columns[None, :]
    inside = (rows < seq_len)[:, None] & (columns < head_dim)[None, :]
    tl.store(x + at, tile.to(x.dtype.element_ty), mask=inside)


@triton.jit
def store_tile(desc, batch, head, row, tile, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Writes `[ROWS, BLOCK_D]` from `row` on; what lies outside the tensor is dropped."""
    desc.store([batch, head, row, 0], tile.to(desc.dtype).reshape(1, 1, ROWS, BLOCK_D))


@triton.jit
def product(a, b, total=None):
    """a b, added to `total`, in float32: full products for float32 tiles, on the matrix units for shorter ones."""
    return tl.dot(a, b, total, input_precision="ieee")


@triton.jit
def visible(queries, keys, seq_len, window, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Whether each query sees each key; `queries` and `keys` are positions that broadcast."""
    if CAUSAL:
        seen = queries >= keys
        if HAS_WINDOW:
            seen = seen & (queries - keys < window)
    else:
        seen = (keys < seq_len) & (queries >= 0)
    return seen


@triton.jit
def seen_span(
    start_m, seq_len, window,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The keys that the queries from `start_m` see: `first .. last`, and all of them see `full .. full_last`.

    All but `last` are multiples of BLOCK_N.
    """
    first = 0
    full = 0
    if CAUSAL:
        last = tl.minimum(start_m + BLOCK_M, seq_len)
        full_last = start_m // BLOCK_N * BLOCK_N
        if HAS_WINDOW:
            first = tl.maximum(start_m - window + 1, 0) // BLOCK_N * BLOCK_N
            full = tl.cdiv(tl.maximum(start_m + BLOCK_M - window, 0), BLOCK_N) * BLOCK_N
            full = tl.maximum(tl.minimum(full, full_last), first)
    else:
        last = seq_len
        full_last = seq_len // BLOCK_N * BLOCK_N
    return first, full, full_last, last


def padded_head_dim(head_dim: int) -> int:
    """The width of a tile: the next power of two, 16 at least, as matrix products want it."""
    return max(16, triton.next_power_of_2(head_dim))


def fits_copy_engine(x: Tensor) -> bool:
    """Whether the tensor copy engine can address x `[B, T, H, D]`: 16-byte steps, a unit last stride."""
    steps = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    aligned = all(step > 0 and step * x.element_size() % 16 == 0 for step in steps[:-1])
    return x.stride(-1) == 1 and aligned and x.data_ptr() % 16 == 0


def descriptor(x: Tensor, rows: int) -> TensorDescriptor:
    """Tiles of `rows` positions of one head of x `[B, T, H, D]`, addressed as (batch, head, position, 0)."""
    batch, length, heads, head_dim = x.shape
    # A step along an axis of size one is never taken, but must still be a multiple of 16 bytes.
    steps = [stride if size > 1 else 16 for size, stride in zip(x.shape, x.stride(), strict=True)]
    return TensorDescriptor(
        x,
        [batch, heads, length, head_dim],
        [steps[0], steps[2], steps[1], 1],
        [1, 1, rows, padded_head_dim(head_dim)],
    )
