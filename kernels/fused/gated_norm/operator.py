"""The Triton gated RMSNorm as PyTorch operators."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register


@torch.library.custom_op("mixerlab::gated_rms_norm", mutates_args=())
def gated_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, silu: bool) -> Tensor:
    """`gated_rms_norm` of `x` `[groups, N H, D]`, `gate` `[groups, N, H D]` and `weight` `[groups, D]`: like `gate`."""
    from mixerlab.kernels.fused.gated_norm import triton_kernels  # here, because Triton is optional

    return triton_kernels.forward(x, gate, weight, eps, silu)


@torch.library.custom_op("mixerlab::gated_rms_norm_backward", mutates_args=())
def gated_norm_backward(
    grad: Tensor, x: Tensor, gate: Tensor, weight: Tensor, eps: float, silu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `x`, `gate` and `weight`."""
    from mixerlab.kernels.fused.gated_norm import triton_kernels

    return triton_kernels.backward(grad, x, gate, weight, eps, silu)


@gated_norm.register_fake
def _(x, gate, weight, eps, silu):
    return gate.new_empty(gate.shape)


@gated_norm_backward.register_fake
def _(grad, x, gate, weight, eps, silu):
    return x.new_empty(x.shape), gate.new_empty(gate.shape), weight.new_empty(weight.shape)


def _save(ctx, inputs, output):
    *tensors, ctx.eps, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx, grad):
    return *gated_norm_backward(grad, *ctx.saved_tensors, ctx.eps, ctx.silu), None, None


register(gated_norm, save=_save, gradients=_gradients)
register(gated_norm_backward)
