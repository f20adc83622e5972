"""Sums of rows by token inside Triton kernels: a product with one-hot rows, which are exact in every format."""

import triton
import triton.language as tl

TF32_BITS = tl.constexpr(-(2**13))  # sign, exponent and ten bits of a float32 number


@triton.jit
def add_by_token(sums, tokens, v, rows):
    """`sums` `[V, D]` plus each of `rows` `[N, D]` in the row where `v` `[V]` is its token, of `tokens` `[N]`.

    Of float32 rows the first 11 bits and what they lack are two products in TF32, which has 11: 22 bits of 24.
    """
    one_hot = (v[:, None] == tokens[None, :]).to(rows.dtype)
    if rows.dtype == tl.float32:
        high = (rows.to(tl.int32, bitcast=True) & TF32_BITS).to(tl.float32, bitcast=True)
        sums = tl.dot(one_hot, rows - high, sums, input_precision="tf32")
        return tl.dot(one_hot, high, sums, input_precision="tf32")
    return tl.dot(one_hot, rows, sums)
