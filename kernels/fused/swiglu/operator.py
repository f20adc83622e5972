"""The Triton SwiGLU gate as PyTorch operators, for two tensors and for one that holds both."""

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.registration import register
from mixerlab.kernels.fused.swiglu.triton_kernels import swiglu_backward_kernel, swiglu_forward_kernel

ROWS, COLUMNS, WARPS = 32, 64, 4  # 64 columns of bfloat16 are one cache line


@torch.library.custom_op("mixerlab::swiglu", mutates_args=())
def gated(gate: Tensor, up: Tensor) -> Tensor:
    """`swiglu` of `[rows, H]`."""
    return _forward(gate, up)


@torch.library.custom_op("mixerlab::swiglu_backward", mutates_args=())
def gated_backward(grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `gate` and `up`."""
    grad_gate, grad_up = (gate.new_empty(gate.shape) for _ in range(2))
    _launch(swiglu_backward_kernel, (grad, gate, up), (grad_gate, grad_up))
    return grad_gate, grad_up


@torch.library.custom_op("mixerlab::swiglu_packed", mutates_args=())
def gated_packed(gate_up: Tensor) -> Tensor:
    """`swiglu_packed` of `[rows, 2 H]`."""
    return _forward(*gate_up.chunk(2, dim=1))


@gated_packed.register_fake
def _(gate_up):
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


@torch.library.custom_op("mixerlab::swiglu_packed_backward", mutates_args=())
def gated_packed_backward(grad: Tensor, gate_up: Tensor) -> Tensor:
    """Gradient of `gate_up`."""
    grad_gate_up = gate_up.new_empty(gate_up.shape)
    _launch(swiglu_backward_kernel, (grad, *gate_up.chunk(2, dim=1)), grad_gate_up.chunk(2, dim=1))
    return grad_gate_up


def _forward(gate: Tensor, up: Tensor) -> Tensor:
    y = gate.new_empty(gate.shape)
    _launch(swiglu_forward_kernel, (gate, up), (y,))
    return y


def _launch(kernel, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
    """Fills `results`. All tensors are `[rows, H]`, with any row stride."""
    tensors = *map(unit_stride, inputs), *results
    rows, width = inputs[0].shape
    programs = triton.cdiv(rows, ROWS) * triton.cdiv(width, COLUMNS)
    if programs:
        strides = (x.stride(0) for x in tensors)
        kernel[programs,](*tensors, rows, width, *strides, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS)


register(gated, like="gate", backward=gated_backward)
register(gated_packed, backward=gated_packed_backward)
register(gated_backward, like="gate up")
register(gated_packed_backward, like="gate_up")
