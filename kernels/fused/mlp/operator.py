"""The Triton SwiGLU layer as PyTorch operators."""

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import whole_rows
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.fused.linear.operator import weight_gradient
from mixerlab.kernels.fused.mlp.triton_kernels import mlp_backward_kernel, mlp_forward_kernel

# (rows, inner columns, stages, warps). Float32 products do not use the tensor cores; with a smaller tile their sums
# stay in registers.
FORWARD = {torch.bfloat16: (128, 32, 3, 4), torch.float32: (32, 32, 1, 4)}
BACKWARD = {torch.bfloat16: (64, 32, 3, 4), torch.float32: (32, 16, 1, 4)}


@operator("swiglu_mlp", like="x")
def mlp(x, gate_up_weight, down_weight):
    """`swiglu_mlp` of `x` `[groups, N, D]`."""
    y = x.new_empty(x.shape)
    _launch(mlp_forward_kernel, FORWARD, (x,), (gate_up_weight, down_weight), (y,))
    return y


@operator("swiglu_mlp_backward")
def mlp_backward(grad, x, gate_up_weight, down_weight) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `x` and of its product with `gate_up`, and `silu(gate) * up` `[groups, N, H]`."""
    results = _backward_results(grad, x, gate_up_weight, down_weight)
    _launch(mlp_backward_kernel, BACKWARD, (grad, x), (gate_up_weight, down_weight), results)
    return results


@mlp_backward.register_fake
def _backward_results(grad, x, gate_up_weight, down_weight):
    widths = x.shape[2], gate_up_weight.shape[1], down_weight.shape[2]
    return tuple(x.new_empty((*x.shape[:2], width)) for width in widths)


def _launch(kernel, configs: dict, inputs: tuple[Tensor, ...], weights: tuple[Tensor, ...], results: tuple) -> None:
    groups, rows, width = inputs[0].shape
    tile, columns, stages, warps = configs[inputs[0].dtype]
    inputs, weights = tuple(t.contiguous() for t in inputs), tuple(whole_rows(t) for t in weights)
    if rows:
        kernel[triton.cdiv(rows, tile), groups](
            *(*inputs, *weights, *results),
            *(rows, *(weight.stride(0) for weight in weights)),
            D=width,
            H=weights[1].shape[2],
            BLOCK_D=max(triton.next_power_of_2(width), 16),
            ROWS=tile,
            COLUMNS=columns,
            STAGES=stages,
            num_warps=warps,
        )


def _gradients(ctx, grad):
    # Gates and ups are computed again, which is faster than to save and read them.
    x, gate_up_weight, down_weight = ctx.saved_tensors
    grad_x, grad_gate_up, hidden = mlp_backward(grad, x, gate_up_weight, down_weight)
    return grad_x, weight_gradient(grad_gate_up, x), weight_gradient(grad, hidden)


register_gradient(mlp, _gradients)
