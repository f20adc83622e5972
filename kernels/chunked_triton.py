"""What the Triton kernels share that walk over a sequence chunk by chunk; names as in the references."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def chunk_rows(n, pid, T, H: tl.constexpr, C: tl.constexpr):
    """Which of the C positions of chunk `n` the sequence has, and where they lie as rows of a `[B, T, H, ...]`.

    Program `pid` has head `pid % H` of sequence `pid // H`.
    """
    batch, head = (pid // H).to(tl.int64), pid % H
    t = n * C + tl.arange(0, C)
    return t < T, (batch * T + t) * H + head


@triton.jit
def load_gates(log_decay, beta, offsets, inside):
    """The chunk's log decay summed from its start `[C]`, over all of it (a number), and `beta` `[C]`."""
    step = tl.load(log_decay + offsets, mask=inside, other=0.0)
    # A position behind the end decays nothing and writes nothing.
    return tl.cumsum(step, 0), tl.sum(step, 0), tl.load(beta + offsets, mask=inside, other=0.0)


@triton.jit
def load_rows(pointer, offsets, inside, D: tl.constexpr):
    """Rows of D numbers, zero where not inside."""
    columns = tl.arange(0, D)
    return tl.load(pointer + offsets[:, None] * D + columns[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def store_rows(pointer, offsets, inside, rows, D: tl.constexpr):
    """Writes rows of D numbers where inside."""
    columns = tl.arange(0, D)
    to = pointer + offsets[:, None] * D + columns[None, :]
    tl.store(to, rows.to(pointer.dtype.element_ty), mask=inside[:, None])


@triton.jit
def square(pointer, index, SIZE: tl.constexpr):
    """Pointers to the `[SIZE, SIZE]` matrix number `index`."""
    i = tl.arange(0, SIZE)
    return pointer + index * SIZE * SIZE + i[:, None] * SIZE + i[None, :]


@triton.jit
def load_state(pointer, index, distance, D: tl.constexpr):
    """The `[D, D]` state number `index`, `distance` chunks from the end of the sequence where it is zero.

    At that end nothing was stored, and nothing is read.
    """
    held = tl.zeros([D, 1], dtype=tl.int32) + distance > 0
    return tl.load(square(pointer, index, D), mask=held, other=0.0)


@triton.jit
def store_state(pointer, index, distance, state, D: tl.constexpr):
    """Writes what `load_state` reads."""
    held = tl.zeros([D, 1], dtype=tl.int32) + distance > 0
    tl.store(square(pointer, index, D), state.to(pointer.dtype.element_ty), mask=held)


@triton.jit
def decay_between(cumulative, C: tl.constexpr):
    """`exp(b_i - b_j)` for `j <= i` and 0 elsewhere, `[C, C]`."""
    i = tl.arange(0, C)
    difference = cumulative[:, None] - cumulative[None, :]
    return tl.exp(tl.where(i[:, None] >= i[None, :], difference, float("-inf")))


@triton.jit
def sum_from(x):
    """Entry i becomes the sum of the entries from i on."""
    return tl.sum(x, 0) - tl.cumsum(x, 0) + x


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """`a @ b` with 16 bits of mantissa at least, where a float32 operand may meet a 16-bit one (exact)."""
    if a.dtype == b.dtype:
        return tl.dot(a, b, input_precision=PRECISION)
    elif a.dtype == tl.float32:
        high = a.to(b.dtype)
        return tl.dot((a - high).to(b.dtype), b, tl.dot(high, b))
    else:
        high = b.to(a.dtype)
        return tl.dot(a, (b - high).to(a.dtype), tl.dot(a, high))


def tile_options(q: Tensor, chunk_size: int) -> dict:
    """Tile sizes, warps and pipeline depth for inputs like q `[B, T, H, D]`; measured on an H200."""
    heads, head_dim = q.shape[2:]
    wide = head_dim > 64  # more stages of such tiles do not fit in shared memory
    sizes = {"H": heads, "D": head_dim, "C": chunk_size}
    return {**sizes, "num_warps": 8 if wide else 4, "num_stages": 2 if wide else 3}
