"""What the Parallax kernels for long sequences share: tiles for the tensor copy engine, and which keys a query sees."""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mixerlab.kernels.common.triton_attention import padded_head_dim

LONGEST_STRIDE = 2**40  # bytes, of the tensor copy engine


@triton.jit
def load_tile(desc, batch, head, row, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows `row .. row + ROWS` of one head as `[ROWS, BLOCK_D]`; zeros outside the tensor."""
    return desc.load([batch, head, row, 0]).reshape(ROWS, BLOCK_D)


@triton.jit
def load_pair(
    x, x_strides, y, y_strides, batch, head, start, seq_len, head_dim, ROWS: tl.constexpr, BLOCK_D: tl.constexpr
):
    """ROWS positions from `start` on of one head of x, and below them the same of y: `[2 ROWS, BLOCK_D]`.

    One product with both takes fewer registers than two products. Otherwise as `common.triton_attention.load_rows`.
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
def load_pair_tile(desc, batch, head, row, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """The same rows of two tensors (`pair_descriptor`), one above the other: `[2 ROWS, BLOCK_D]`."""
    return desc.load([batch, head, 0, row, 0]).reshape(2 * ROWS, BLOCK_D)


@triton.jit
def store_tile(desc, batch, head, row, tile, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Writes `[ROWS, BLOCK_D]` from `row` on, except what lies outside the tensor."""
    tile = tile.to(desc.dtype)  # `store` casts after the reshape, which may then move float32 between threads
    desc.store([batch, head, row, 0], tile.reshape(1, 1, ROWS, BLOCK_D))


@triton.jit
def query_offset(sequence, seq_len, ROOM: tl.constexpr):
    """Where a sequence begins in a tensor of one element for each query, padded to whole tiles of the forward.

    The padding stands for queries past the end. The forward gives them an infinite lse, so that their weights are 0.
    """
    return sequence.to(tl.int64) * (tl.cdiv(seq_len, ROOM) * ROOM)


@triton.jit
def visible(queries, keys, window):
    """Whether each query sees each key; `queries` and `keys` are positions that broadcast."""
    seen = queries >= keys
    if window is not None:
        seen = seen & (queries - keys < window)
    return seen


@triton.jit
def key_bounds(start_m, seq_len, window, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The four bounds of three stretches of the keys that queries of the block at `start_m` see.

    All queries see the second stretch, which needs no mask. The first is empty without a window. All bounds but the
    last are multiples of BLOCK_N.
    """
    first = 0
    full = 0
    last = tl.minimum(start_m + BLOCK_M, seq_len)
    full_last = start_m // BLOCK_N * BLOCK_N
    if window is not None:
        first = tl.maximum(start_m - window + 1, 0) // BLOCK_N * BLOCK_N
        full = tl.cdiv(tl.maximum(start_m + BLOCK_M - window, 0), BLOCK_N) * BLOCK_N
        full = tl.maximum(tl.minimum(full, full_last), first)
    return first, full, full_last, last


def for_copy_engine(x: Tensor) -> Tensor:
    """x, or a copy if the tensor copy engine cannot address it: it needs strides of whole 16 bytes, and one last."""
    steps = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]
    aligned = all(step > 0 and step * x.element_size() % 16 == 0 for step in steps[:-1])
    fits = x.stride(-1) == 1 and aligned and x.data_ptr() % 16 == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _strides(x: Tensor) -> list[int]:
    """The strides of x for the copy engine. That of an axis of size one is not used, but must be whole 16 bytes too."""
    return [stride if size > 1 else 16 for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True)] + [1]


def descriptor(x: Tensor, rows: int) -> TensorDescriptor:
    """Tiles of `rows` positions of one head of x `[B, T, H, D]`, addressed as (batch, head, position, 0)."""
    batch, length, heads, head_dim = x.shape
    of_batch, of_position, of_head, unit = _strides(x)
    return TensorDescriptor(
        x,
        [batch, heads, length, head_dim],
        [of_batch, of_head, of_position, unit],
        [1, 1, rows, padded_head_dim(head_dim)],
    )


def pair_descriptor(x: Tensor, y: Tensor, rows: int) -> TensorDescriptor:
    """Tiles of two tensors of one shape, x above y, addressed as (batch, head, 0, position, 0).

    If y lies behind x in memory, the distance is the stride of one more axis. If it does not, or their strides differ,
    both are copied: the order of a sum must not depend on addresses.
    """
    apart = y.data_ptr() - x.data_ptr()
    if not 0 < apart < LONGEST_STRIDE or apart % 16 or _strides(x) != _strides(y):
        x, y = torch.stack((x, y))
        apart = y.data_ptr() - x.data_ptr()
    both = descriptor(x, rows)
    both.shape.insert(2, 2)
    both.strides.insert(2, apart // x.element_size())
    both.block_shape.insert(2, 2)
    return both
