"""The Triton SwiGLU gate as PyTorch operators, for two tensors and for one that holds both."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register


@torch.library.custom_op("mixerlab::swiglu", mutates_args=())
def gated(gate: Tensor, up: Tensor) -> Tensor:
    """`swiglu` of `[rows, H]`."""
    from mixerlab.kernels.fused.swiglu import triton_kernels  # here, because Triton is optional

    return triton_kernels.forward(gate, up)


@torch.library.custom_op("mixerlab::swiglu_backward", mutates_args=())
def gated_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `gate` and `up`."""
    from mixerlab.kernels.fused.swiglu import triton_kernels

    grad_gate, grad_up = (torch.empty(gate.shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
    triton_kernels.backward(grad, gate, up, grad_gate, grad_up)
    return grad_gate, grad_up


@torch.library.custom_op("mixerlab::swiglu_packed", mutates_args=())
def gated_packed(gate_up: Tensor) -> Tensor:
    """`swiglu_packed` of `[rows, 2 H]`."""
    from mixerlab.kernels.fused.swiglu import triton_kernels

    return triton_kernels.forward(*gate_up.chunk(2, dim=1))


@torch.library.custom_op("mixerlab::swiglu_packed_backward", mutates_args=())
def gated_packed_backward(grad: Tensor, gate_up: Tensor) -> Tensor:
    """Gradient of `gate_up`."""
    from mixerlab.kernels.fused.swiglu import triton_kernels

    grad_gate_up = torch.empty(gate_up.shape, dtype=gate_up.dtype, device=gate_up.device)
    triton_kernels.backward(grad, *gate_up.chunk(2, dim=1), *grad_gate_up.chunk(2, dim=1))
    return grad_gate_up


@gated.register_fake
def _(gate, up):
    return gate.new_empty(gate.shape)


@gated_backward.register_fake
def _(grad, gate, up):
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


@gated_packed.register_fake
def _(gate_up):
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


@gated_packed_backward.register_fake
def _(grad, gate_up):
    return gate_up.new_empty(gate_up.shape)


register(gated, gradients=lambda ctx, grad: gated_backward(grad, *ctx.saved_tensors))
register(gated_packed, gradients=lambda ctx, grad: gated_packed_backward(grad, *ctx.saved_tensors))
register(gated_backward)
register(gated_packed_backward)
