"""Triton kernels of the embedding. Forward: a gather. Backward: one-hot(tokens)^T times the gradient.

A program of the backward takes a block of the vocabulary, a block of columns and a part of the rows of one group. The
parts are added up afterwards.
"""

import triton
import triton.language as tl

TF32_BITS = tl.constexpr(-(2**13))  # of a float32: sign, exponent and ten bits


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


@triton.jit
def _add_by_token(sums, tokens, v, rows):
    """Adds each of `rows` `[N, D]` to the row of `sums` `[V, D]` whose token `v` `[V]` is that of `tokens` `[N]`.

    A product with one-hot rows is exact in every dtype. TF32 has 11 bits of mantissa. So float32 rows take two
    products, with their first 11 bits and with the rest, and keep 22 of their 24 bits.
    """
    one_hot = (v[:, None] == tokens[None, :]).to(rows.dtype)
    if rows.dtype == tl.float32:
        high = (rows.to(tl.int32, bitcast=True) & TF32_BITS).to(tl.float32, bitcast=True)
        sums = tl.dot(one_hot, rows - high, sums, input_precision="tf32")
        return tl.dot(one_hot, high, sums, input_precision="tf32")
    return tl.dot(one_hot, rows, sums)


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
        sums = _add_by_token(sums, token, v, grad)
    at = ((group * parts + part) * V + v)[:, None] * D + column[None, :]
    tl.store(sums_ptr + at, sums, mask=(v < V)[:, None] & (column < D)[None, :])
