"""What the Parallax kernels of long sequences share: tiles of the copy engine, and which keys a query sees."""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.attention_tiles import padded_head_dim


@triton.jit
def load_tile(desc, batch, head, row, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Rows `row .. row + ROWS` of one head as `[ROWS, BLOCK_D]`; zeros outside the tensor."""
    return desc.load([batch, head, row, 0]).reshape(ROWS, BLOCK_D)


@triton.jit
def store_tile(desc, batch, head, row, tile, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    """Writes `[ROWS, BLOCK_D]` from `row` on; what lies outside the tensor is dropped."""
    desc.store([batch, head, row, 0], tile.to(desc.dtype).reshape(1, 1, ROWS, BLOCK_D))


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
