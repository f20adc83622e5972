"""Triton kernels of the embedding. Forward: a gather. Backward: one-hot(tokens)^T times the gradient.

A program of the backward takes a block of the vocabulary, a block of columns and a part of the rows of one group. The
parts are added up afterwards.
"""

import triton
import triton.language as tl

from mixerlab.kernels.fused.triton_one_hot import add_by_token


# Two builds: for weights aligned for vector loads, and for any place among the population's parameters. Eight loads for
# the eight bfloat16 elements that a thread writes would make the aligned case slower.
@triton.jit(do_not_specialize=["N"])
def embedding_forward_kernel(
    tokens_ptr, weight_ptr, y_ptr,
    N, weight_group, weight_row,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
    token = tl.load(tokens_ptr + group * N + row, mask=row < N, other=0)
    mask = (row < N)[:, None] & (column < D)[None, :]
    y = tl.load(weight_ptr + group * weight_group + token[:, None] * weight_row + column[None, :], mask=mask)
    tl.store(y_ptr + (group * N + row)[:, None] * D + column[None, :], y, mask=mask)


@triton.jit(do_not_specialize=["N", "V", "part_rows"])
def embedding_backward_kernel(
    grad_ptr, tokens_ptr, sums_ptr,
    N, V, part_rows,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    part, parts = tl.program_id(0), tl.num_programs(0)
    across = tl.cdiv(D, BLOCK_D)
    column = (tl.program_id(2) % across) * BLOCK_D + tl.arange(0, BLOCK_D)
    v = (tl.program_id(2) // across) * BLOCK_V + tl.arange(0, BLOCK_V)
    sums = tl.zeros((BLOCK_V, BLOCK_D), dtype=tl.float32)
    for start in range(part * part_rows, min((part + 1) * part_rows, N), BLOCK_N):
        row = start + tl.arange(0, BLOCK_N)
        token = tl.load(tokens_ptr + group * N + row, mask=row < N, other=-1)
        grad = tl.load(
            grad_ptr + (group * N + row)[:, None] * D + column[None, :],
            mask=(row < N)[:, None] & (column < D)[None, :],
            other=0.0,
        )
        sums = add_by_token(sums, token, v, grad)
    at = ((group * parts + part) * V + v)[:, None] * D + column[None, :]
    tl.store(sums_ptr + at, sums, mask=(v < V)[:, None] & (column < D)[None, :])
