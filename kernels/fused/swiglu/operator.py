"""The Triton SwiGLU gate as PyTorch operators, for two tensors and for one that holds both."""

import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.fused.swiglu.triton_kernels import swiglu_backward_kernel, swiglu_forward_kernel

ROWS, COLUMNS, WARPS = 32, 64, 4  # 64 columns of bfloat16 are one cache line


@operator("swiglu", like="gate")
def gated(gate, up):
    """`swiglu` of `[rows, H]`."""
    return _forward(gate, up)


@operator("swiglu_backward", like="gate up")
def gated_backward(grad, gate, up):
    """Gradients of `gate` and `up`."""
    grad_gate, grad_up = (gate.new_empty(gate.shape) for _ in range(2))
    _launch(swiglu_backward_kernel, (grad, gate, up), (grad_gate, grad_up))
    return grad_gate, grad_up


@operator("swiglu_packed")
def gated_packed(gate_up):
    """`swiglu_packed` of `[rows, 2 H]`."""
    return _forward(*gate_up.chunk(2, dim=1))


@gated_packed.register_fake
def _(gate_up):
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


@operator("swiglu_packed_backward", like="gate_up")
def gated_packed_backward(grad, gate_up):
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


register_gradient(gated, gated_backward)
register_gradient(gated_packed, gated_packed_backward)
