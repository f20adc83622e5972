"""Triton kernels of the gated RMSNorm. A program takes whole rows, each a head of a position, as in RMSNorm.

The norm is neither written nor saved: the backward computes it again from x.
"""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    row, x_ptr, gate_ptr, group, N, gate_group, gate_row, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Rows of x and of the gate in float32, where they lie in a contiguous tensor, and which elements exist."""
    column = tl.arange(0, BLOCK_D)
    mask = (row < N)[:, None] & (column < D)[None, :]
    at = (group * N + row)[:, None] * D + column[None, :]
    at_gate = (
        group * gate_group + (row // H).to(tl.int64)[:, None] * gate_row + (row % H)[:, None] * D + column[None, :]
    )
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + at_gate, mask=mask, other=0.0).to(tl.float32)
    return x, gate, at, mask


@triton.jit(do_not_specialize=["N", "weight_group"], do_not_specialize_on_alignment=["weight_ptr"])
def gated_norm_forward_kernel(
    x_ptr, gate_ptr, weight_ptr, y_ptr, N, gate_group, gate_row, weight_group, eps,
    SILU: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK_D)
    x, gate, at, mask = load_tile(row, x_ptr, gate_ptr, group, N, gate_group, gate_row, H, D, BLOCK_D)
    weight = tl.load(weight_ptr + group * weight_group + column, mask=column < D, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)
    y = x * scale[:, None] * weight[None, :] * (gate * tl.sigmoid(gate) if SILU else tl.sigmoid(gate))
    tl.store(y_ptr + at, y, mask=mask)


@triton.jit(do_not_specialize=["N", "weight_group"], do_not_specialize_on_alignment=["weight_ptr"])
def gated_norm_backward_kernel(
    grad_ptr, x_ptr, gate_ptr, weight_ptr, grad_x_ptr, grad_gate_ptr, sums_ptr,
    N, gate_group, gate_row, weight_group, eps,
    SILU: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    part, parts = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK_D)
    weight = tl.load(weight_ptr + group * weight_group + column, mask=column < D, other=0.0).to(tl.float32)
    grad_weight = tl.zeros((ROWS, BLOCK_D), dtype=tl.float32)
    for start in range(part * ROWS, N, parts * ROWS):
        row = start + tl.arange(0, ROWS)
        x, gate, at, mask = load_tile(row, x_ptr, gate_ptr, group, N, gate_group, gate_row, H, D, BLOCK_D)
        grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
        # Zero for rows past N: it would be infinite if eps were 0.
        scale = tl.where(row < N, tl.rsqrt(tl.sum(x * x, axis=1) / D + eps), 0.0)[:, None]
        x *= scale
        sigmoid = tl.sigmoid(gate)
        gated = gate * sigmoid if SILU else sigmoid
        grad_gate = grad * x * weight[None, :] * (gated * (1.0 - sigmoid) + (sigmoid if SILU else 0.0))
        tl.store(grad_gate_ptr + at, grad_gate, mask=mask)
        grad *= gated
        grad_weight += grad * x
        grad *= weight[None, :]
        grad_x = scale * (grad - x * (tl.sum(grad * x, axis=1) / D)[:, None])
        tl.store(grad_x_ptr + at, grad_x, mask=mask)
    tl.store(sums_ptr + (group * parts + part) * D + column, tl.sum(grad_weight, axis=0), mask=column < D)
