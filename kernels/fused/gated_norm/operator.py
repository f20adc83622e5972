"""The Triton gated RMSNorm as PyTorch operators."""

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.registration import register
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.fused.gated_norm.triton_kernels import gated_norm_backward_kernel, gated_norm_forward_kernel
from mixerlab.kernels.fused.rms_norm.operator import BACKWARD, FORWARD_WARPS, TILE


@torch.library.custom_op("mixerlab::gated_rms_norm", mutates_args=())
def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, silu: bool) -> Tensor:
    """`gated_rms_norm` of `x` `[groups, N H, D]`, `gate` `[groups, N, H D]` and `weight` `[groups, D]`: like `gate`."""
    x, gate, weight = x.contiguous(), unit_stride(gate), unit_stride(weight)
    y = gate.new_empty(gate.shape)
    constants = _constants(x, gate)
    if x.numel():
        gated_norm_forward_kernel[triton.cdiv(x.shape[1], constants["ROWS"]), x.shape[0]](
            *(x, gate, weight, y, x.shape[1], *gate.stride()[:2], weight.stride(0), eps),
            SILU=silu,
            **constants,
            num_warps=FORWARD_WARPS,
        )
    return y


@torch.library.custom_op("mixerlab::gated_rms_norm_backward", mutates_args=())
def gated_norm_backward(
    grad: Tensor, x: Tensor, gate: Tensor, weight: Tensor, eps: float, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `x`, `gate` and `weight`."""
    grad, x, gate, weight = grad.contiguous(), x.contiguous(), unit_stride(gate), unit_stride(weight)
    groups, rows, width = x.shape
    constants = _constants(x, gate)
    warps, programs, stages = BACKWARD
    parts = min(triton.cdiv(rows, constants["ROWS"]), max(1, programs * processors(x.device) // groups))
    sums = x.new_empty((groups, parts, width), dtype=torch.float32)
    grad_x, grad_gate = x.new_empty(x.shape), gate.new_empty(gate.shape)
    if x.numel():
        gated_norm_backward_kernel[parts, groups](
            *(grad, x, gate, weight, grad_x, grad_gate, sums),
            *(rows, *gate.stride()[:2], weight.stride(0), eps),
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


register(gated_norm, like="gate", backward=gated_norm_backward, options=2)
register(gated_norm_backward, like="x gate weight")
