"""Triton kernels of RMSNorm and of the addition before it. A program takes whole rows.

Forward: one tile of rows per program. Backward: a fixed number of programs stride over the rows, so that each keeps its
part of the gradient of the weight in registers; the parts are added up afterwards. No atomics: the result has the same
bits every time. The backward computes the scale of a row again; only the input is saved.
"""

import triton
import triton.language as tl

# One build for any number of rows, and for weights at any place among the population's parameters.
ANY = {"do_not_specialize": ["N", "weight_group"], "do_not_specialize_on_alignment": ["weight_ptr"]}


@triton.jit(**ANY)
def rms_norm_forward_kernel(
    x_ptr,
    y_ptr,  # added to x, unless None
    weight_ptr,
    total_ptr,  # None: the sum is not written, and not rounded before it is normed
    normed_ptr,
    N,
    weight_group,
    eps,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    mask = (row < N)[:, None] & (column < D)[None, :]
    at = (group * N + row)[:, None] * D + column[None, :]
    weight = tl.load(weight_ptr + group * weight_group + column, mask=column < D, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if y_ptr is not None:
        x += tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if total_ptr is not None:
        # Normed as it is stored, rounded: so the backward reads it.
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + at, total, mask=mask)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)
    normed = x * scale[:, None] * weight[None, :]
    tl.store(normed_ptr + at, normed, mask=mask)


@triton.jit(**ANY)
def rms_norm_backward_kernel(
    grad_ptr,
    past_ptr,  # the gradient that reaches x past the norm; None if there is none
    x_ptr,
    weight_ptr,
    grad_x_ptr,
    copy_ptr,  # for the gradient of x in another dtype; None if it is not needed
    sums_ptr,  # the gradient of the weight, a row of each part
    N,
    weight_group,
    eps,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    part, parts = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK_D)
    weight = tl.load(weight_ptr + group * weight_group + column, mask=column < D, other=0.0).to(tl.float32)
    grad_weight = tl.zeros((ROWS, BLOCK_D), dtype=tl.float32)
    for start in range(part * ROWS, N, parts * ROWS):
        row = start + tl.arange(0, ROWS)
        mask = (row < N)[:, None] & (column < D)[None, :]
        at = (group * N + row)[:, None] * D + column[None, :]
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        # Zero for rows past N: it would be infinite if eps were 0.
        scale = tl.where(row < N, tl.rsqrt(tl.sum(x * x, axis=1) / D + eps), 0.0)[:, None]
        x *= scale
        grad_weight += grad * x
        grad *= weight[None, :]
        grad_x = scale * (grad - x * (tl.sum(grad * x, axis=1) / D)[:, None])
        if past_ptr is not None:
            grad_x += tl.load(past_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(grad_x_ptr + at, grad_x, mask=mask)
        if copy_ptr is not None:
            tl.store(copy_ptr + at, grad_x, mask=mask)
    tl.store(sums_ptr + (group * parts + part) * D + column, tl.sum(grad_weight, axis=0), mask=column < D)
