"""The Triton SwiGLU layer as PyTorch operators."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register
from mixerlab.kernels.fused.linear.operator import weight_gradient


@torch.library.custom_op("mixerlab::swiglu_mlp", mutates_args=())
def mlp(x: Tensor, gate_up_weight: Tensor, down_weight: Tensor) -> Tensor:
    """`swiglu_mlp` of `x` `[groups, N, D]`."""
    from mixerlab.kernels.fused.mlp import triton_kernels  # here, because Triton is optional

    return triton_kernels.forward(x, gate_up_weight, down_weight)


@torch.library.custom_op("mixerlab::swiglu_mlp_backward", mutates_args=())
def mlp_backward(grad: Tensor, x: Tensor, gate_up_weight: Tensor, down_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `x` and of its product with `gate_up`, and `silu(gate) * up` `[groups, N, H]`."""
    from mixerlab.kernels.fused.mlp import triton_kernels

    return triton_kernels.backward(grad, x, gate_up_weight, down_weight)


@mlp.register_fake
def _(x, gate_up_weight, down_weight):
    return x.new_empty(x.shape)


@mlp_backward.register_fake
def _(grad, x, gate_up_weight, down_weight):
    widths = x.shape[2], gate_up_weight.shape[1], down_weight.shape[2]
    return tuple(x.new_empty((*x.shape[:2], width)) for width in widths)


def _gradients(ctx, grad):
    # Gates and ups are computed again, which is faster than to save and read them.
    x, gate_up_weight, down_weight = ctx.saved_tensors
    grad_x, grad_gate_up, hidden = mlp_backward(grad, x, gate_up_weight, down_weight)
    return grad_x, weight_gradient(grad_gate_up, x), weight_gradient(grad, hidden)


register(mlp, gradients=_gradients)
register(mlp_backward)
