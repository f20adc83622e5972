"""Triton kernels of the gated RMSNorm. A program takes whole rows, each a head of a position, as in RMSNorm.

The norm is neither written nor saved: the backward computes it again from x.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.fused.rms_norm.triton_kernels import BACKWARD, FORWARD_WARPS, TILE


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
def _gated_norm_forward_kernel(
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
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["N", "weight_group"], do_not_specialize_on_alignment=["weight_ptr"])
def _gated_norm_backward_kernel(
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
        tl.store(grad_gate_ptr + at, grad_gate.to(grad_gate_ptr.dtype.element_ty), mask=mask)
        grad *= gated
        grad_weight += grad * x
        grad *= weight[None, :]
        grad_x = scale * (grad - x * (tl.sum(grad * x, axis=1) / D)[:, None])
        tl.store(grad_x_ptr + at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
    tl.store(sums_ptr + (group * parts + part) * D + column, tl.sum(grad_weight, axis=0), mask=column < D)


def forward(x: Tensor, gate: Tensor, weight: Tensor, eps: float, silu: bool) -> Tensor:
    """`gated_norm` of `kernels.fused.gated_norm.operator`."""
    x, gate, weight = x.contiguous(), unit_stride(gate), unit_stride(weight)
    y = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    constants = _constants(x, gate)
    if x.numel():
        _gated_norm_forward_kernel[triton.cdiv(x.shape[1], constants["ROWS"]), x.shape[0]](
            *(x, gate, weight, y, x.shape[1], *gate.stride()[:2], weight.stride(0), eps),
            SILU=silu,
            **constants,
            num_warps=FORWARD_WARPS,
        )
    return y


def backward(
    grad: Tensor, x: Tensor, gate: Tensor, weight: Tensor, eps: float, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`gated_norm_backward` of `kernels.fused.gated_norm.operator`."""
    grad, x, gate = grad.contiguous(), x.contiguous(), unit_stride(gate)
    groups, rows, width = x.shape
    constants = _constants(x, gate)
    warps, programs, stages = BACKWARD
    parts = min(triton.cdiv(rows, constants["ROWS"]), max(1, programs * processors(x.device) // groups))
    sums = torch.empty((groups, parts, width), dtype=torch.float32, device=x.device)
    grad_x, grad_gate = torch.empty_like(x), torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    rows_of_weight = unit_stride(weight)
    if x.numel():
        _gated_norm_backward_kernel[parts, groups](
            *(grad, x, gate, rows_of_weight, grad_x, grad_gate, sums),
            *(rows, *gate.stride()[:2], rows_of_weight.stride(0), eps),
            SILU=silu,
            **constants,
            num_warps=warps,
            num_stages=stages,
        )
    return grad_x, grad_gate, sum_parts(sums, weight.dtype)


def _constants(x: Tensor, gate: Tensor) -> dict[str, int]:
    width = x.shape[2]
    block = max(16, triton.next_power_of_2(width))
    return {"H": gate.shape[2] // width, "D": width, "BLOCK_D": block, "ROWS": max(1, TILE // block)}
