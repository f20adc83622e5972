"""What Triton kernels share that process a sequence chunk by chunk; names as in the references."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_HEADS = 2**16 - 1  # programs along the second axis of a launch


@triton.jit
def chunk_rows(n, pid, T, H: tl.constexpr, C: tl.constexpr):
    """Of the C positions of chunk `n`: which exist in the sequence, and which rows they are of a `[B T H, ...]` tensor.

    Program `pid` works on head `pid % H` of sequence `pid // H`.
    """
    batch, head = (pid // H).to(tl.int64), pid % H
    t = n * C + tl.arange(0, C)
    return t < T, (batch * T + t) * H + head


@triton.jit
def load_gates(log_decay, beta, offsets, inside):
    """The log decay summed from the chunk's start to each position `[C]`, its sum over the chunk, and `beta` `[C]`."""
    step = tl.load(log_decay + offsets, mask=inside, other=0.0)
    # Positions past the end of the sequence decay nothing and write nothing.
    return tl.cumsum(step, 0), tl.sum(step, 0), tl.load(beta + offsets, mask=inside, other=0.0)


@triton.jit
def load_rows(pointer, offsets, inside, D: tl.constexpr):
    """Rows of D elements; zeros for those that do not exist."""
    columns = tl.arange(0, D)
    return tl.load(pointer + offsets[:, None] * D + columns[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def load_packed_rows(pointer, n, pid, T, row, inside, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """Chunk `n` of a head, as `load_rows`, of a tensor whose positions lie `row` elements apart (`packed_heads`)."""
    batch, head = (pid // H).to(tl.int64), pid % H
    at = (batch * T + n * C + tl.arange(0, C)) * row + head * D
    return tl.load(pointer + at[:, None] + tl.arange(0, D)[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def store_rows(pointer, offsets, inside, rows, D: tl.constexpr):
    """Writes the rows of D elements that exist."""
    columns = tl.arange(0, D)
    to = pointer + offsets[:, None] * D + columns[None, :]
    tl.store(to, rows, mask=inside[:, None])


@triton.jit
def matrix(pointer, index, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers to the elements of matrix `index` of `[..., ROWS, COLUMNS]`."""
    return pointer + index * ROWS * COLUMNS + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def load_state(pointer, index, distance, D: tl.constexpr):
    """State `index`, `[D, D]`.

    States are zero at one end of the sequence, `distance` chunks away. There nothing is stored or read.
    """
    held = tl.zeros([D, 1], dtype=tl.int32) + distance > 0
    return tl.load(matrix(pointer, index, D, D), mask=held, other=0.0)


@triton.jit
def store_state(pointer, index, distance, state):
    """The inverse of `load_state`, for states of any shape."""
    held = tl.zeros([state.shape[0], 1], dtype=tl.int32) + distance > 0
    to = matrix(pointer, index, state.shape[0], state.shape[1])
    tl.store(to, state, mask=held)


@triton.jit
def decay_between(cumulative, C: tl.constexpr):
    """`exp(b_i - b_j)` for `j <= i`, else 0: `[C, C]`, from cumulative log decays b."""
    i = tl.arange(0, C)
    difference = cumulative[:, None] - cumulative[None, :]
    return tl.exp(tl.where(i[:, None] >= i[None, :], difference, float("-inf")))


@triton.jit
def sum_from(x):
    """The sums from each entry to the last."""
    return tl.sum(x, 0) - tl.cumsum(x, 0) + x


@triton.jit
def split_dot(a, b, PRECISION: tl.constexpr):
    """`a @ b` with at least 16 bits of mantissa. One operand may be float32 and the other have 16 bits.

    Then the float32 one is split into two 16-bit parts, and the 16-bit one is used as it is.
    """
    if a.dtype == b.dtype:
        return tl.dot(a, b, input_precision=PRECISION)
    elif a.dtype == tl.float32:
        high = a.to(b.dtype)
        return tl.dot((a - high).to(b.dtype), b, tl.dot(high, b))
    else:
        high = b.to(a.dtype)
        return tl.dot(a, (b - high).to(a.dtype), tl.dot(a, high))


def tile_options(q: Tensor, chunk_size: int) -> dict:
    """Tile sizes, warps and pipeline depth for inputs like q `[B, T, H, D]`, as measured on an H200.

    `ValueError` for more heads of sequences than the second axis of a launch holds.
    """
    batch, _, heads, head_dim = q.shape
    if batch * heads > MOST_HEADS:
        raise ValueError(
            f"{batch} sequences of {heads} heads: the kernel takes at most {MOST_HEADS} heads in all, those of all"
            " replicas together; train on fewer rows at once, as trainer.accumulate does, or use backend='reference'"
        )
    wide = head_dim > 64  # three stages of such tiles would not fit in shared memory
    sizes = {"H": heads, "D": head_dim, "C": chunk_size}
    return {**sizes, "num_warps": 8 if wide else 4, "num_stages": 2 if wide else 3}


def precision_of(q: Tensor) -> str:
    """Of products of float32 operands. With bfloat16 inputs these occur only in the inverses of triangular systems."""
    return "tf32x3" if q.dtype == torch.float32 else "tf32"
