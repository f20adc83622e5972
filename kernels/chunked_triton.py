"""What the Triton kernels share that walk over a sequence chunk by chunk; names as in the references."""

import torch
import triton
import triton.language as tl
from torch import Tensor


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
def decay_between(cumulative, C: tl.constexpr):
    """`exp(b_i - b_j)` for `j <= i` and 0 elsewhere, `[C, C]`."""
    i = tl.arange(0, C)
    difference = cumulative[:, None] - cumulative[None, :]
    return tl.exp(tl.where(i[:, None] >= i[None, :], difference, float("-inf")))


@triton.jit
def sum_from(x):
    """Entry i becomes the sum of the entries from i on."""
    return tl.sum(x, 0) - tl.cumsum(x, 0) + x


def launch_options(q: Tensor) -> dict:
    """Warps and the precision of matrix products for inputs like q `[B, T, H, D]`."""
    return {
        "num_warps": 8 if q.shape[-1] > 64 else 4,
        # Only for float32 operands: with bfloat16 inputs those are the triangular inverses.
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
    }
