"""Triton kernels of RMSNorm and of the addition before it. A program owns whole rows.

Forward: one tile of rows per program. Backward: a fixed number of programs stride over the rows, so that each
keeps its part of the weight's gradient in registers; the parts are summed after. No atomics: the same bits
every time. The scale of a row is computed again in the backward; nothing but the input is saved.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.fused.rms_norm import empty_copy
from kernels.fused.triton_sums import sum_parts
from kernels.layout import unit_stride

TILE = 2048  # elements
WARPS = {"forward": 4, "backward": 8}  # the backward keeps more of a tile: 236 us with 4, 201 with 8 (3 x 131,072 rows)
BACKWARD_PROGRAMS = 4 * 132  # of all groups together: four for each multiprocessor of an H100 or H200
# One build for every number of rows and every place of the weights among the population's parameters.
ANY = {"do_not_specialize": ["N", "weight_group"], "do_not_specialize_on_alignment": ["weight_ptr"]}


@triton.jit(**ANY)
def _rms_norm_forward_kernel(
    x_ptr,
    y_ptr,  # None: nothing is added
    weight_ptr,
    total_ptr,
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
        # What is normed is the sum as stored: rounded, as the backward reads it.
        x += tl.load(y_ptr + at, mask=mask, other=0.0).to(tl.float32)
        total = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + at, total, mask=mask)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)
    normed = x * scale[:, None] * weight[None, :]
    tl.store(normed_ptr + at, normed.to(normed_ptr.dtype.element_ty), mask=mask)


@triton.jit(**ANY)
def _rms_norm_backward_kernel(
    grad_ptr,
    past_ptr,  # None: no gradient reaches x but through the norm
    x_ptr,
    weight_ptr,
    grad_x_ptr,
    copy_ptr,  # None: no second copy of the gradient of x
    sums_ptr,
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
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        x *= scale
        grad_weight += grad * x
        grad *= weight[None, :]
        grad_x = scale * (grad - x * (tl.sum(grad * x, axis=1) / D)[:, None])
        if past_ptr is not None:
            grad_x += tl.load(past_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(grad_x_ptr + at, grad_x.to(grad_x_ptr.dtype.element_ty), mask=mask)
        if copy_ptr is not None:
            tl.store(copy_ptr + at, grad_x.to(copy_ptr.dtype.element_ty), mask=mask)
    sums = sums_ptr + (group * parts + part) * D + column
    tl.store(sums, tl.sum(grad_weight, axis=0), mask=column < D)


def forward(
    x: Tensor, y: Tensor | None, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor | None, Tensor]:
    """`x + y` (None without `y`) and its norm, for `x` `[groups, N, D]` and `weight` `[groups, D]`."""
    groups, rows, width = x.shape
    total = None
    if y is not None:
        y = y.contiguous()
        total = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype), device=x.device)
    normed = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    weight = unit_stride(weight)
    if x.numel():
        tile = _tile(width, "forward")
        _rms_norm_forward_kernel[triton.cdiv(rows, tile["ROWS"]), groups](
            x.contiguous(), y, weight, total, normed, rows, weight.stride(0), eps, **tile
        )
    return total, normed


def backward(
    grad: Tensor,
    grad_past: Tensor | None,
    x: Tensor,
    weight: Tensor,
    eps: float,
    copy_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`norm_backward` of `kernels.fused.rms_norm`."""
    groups, rows, width = x.shape
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    copy = empty_copy(x, copy_dtype)
    tile = _tile(width, "backward")
    parts = min(triton.cdiv(rows, tile["ROWS"]), max(1, BACKWARD_PROGRAMS // groups))
    sums = torch.empty((groups, parts, width), dtype=torch.float32, device=x.device)
    weight = unit_stride(weight)
    if x.numel():
        _rms_norm_backward_kernel[parts, groups](
            grad.contiguous(),
            None if grad_past is None else grad_past.contiguous(),
            x.contiguous(),
            weight,
            grad_x,
            copy if copy_dtype else None,
            sums,
            rows,
            weight.stride(0),
            eps,
            **tile,
        )
    return grad_x, sum_parts(sums, weight.dtype), copy


def _tile(width: int, direction: str) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"D": width, "BLOCK_D": block, "ROWS": max(1, TILE // block), "num_warps": WARPS[direction]}
