"""Triton kernels of a SwiGLU layer: a program owns some rows and walks the inner width in tiles.

Forward: x stays in the multiprocessor; each tile of gates and ups is computed, written for the backward, gated,
written again for the gradient of the second weight, and multiplied into the result, which stays in registers.
Backward: the same walk with the result's gradient in place of x. The weights come from the L2 cache.
The gated product is made from the rounded gates, as three operators one by one would make it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# (rows, inner columns, stages, warps), forward and backward. float32 products run outside the tensor cores: a smaller
# tile keeps their sums in registers.
FORWARD = {torch.bfloat16: (128, 64, 2, 8), torch.float32: (32, 32, 1, 4)}
BACKWARD = {torch.bfloat16: (128, 32, 2, 8), torch.float32: (32, 16, 1, 4)}


@triton.jit(do_not_specialize=["N"])
def _forward_kernel(
    x_ptr,
    gate_up_weight_ptr,
    down_weight_ptr,
    y_ptr,
    gate_up_ptr,
    hidden_ptr,
    N,
    D: tl.constexpr,
    H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    rows_in, d_in = (row < N)[:, None], (d < D)[None, :]
    at = (group * N + row)[:, None]
    x = tl.load(x_ptr + at * D + d[None, :], mask=rows_in & d_in, other=0.0)
    gate_weights = gate_up_weight_ptr + group * (2 * H * D)
    down_weights = down_weight_ptr + group * (D * H)
    dtype = x.dtype
    y = tl.zeros((ROWS, BLOCK_D), dtype=tl.float32)
    for start in tl.range(0, H, COLUMNS, num_stages=STAGES):
        h = start + tl.arange(0, COLUMNS)
        h_in = h < H
        weight_at = gate_weights + h[:, None] * D + d[None, :]
        gate_weight = tl.load(weight_at, mask=h_in[:, None] & d_in, other=0.0)
        up_weight = tl.load(weight_at + H * D, mask=h_in[:, None] & d_in, other=0.0)
        down_weight = tl.load(
            down_weights + d[None, :] * H + h[:, None], mask=h_in[:, None] & d_in, other=0.0
        )
        gate = tl.dot(x, tl.trans(gate_weight), input_precision="ieee").to(dtype)
        up = tl.dot(x, tl.trans(up_weight), input_precision="ieee").to(dtype)
        mask = rows_in & h_in[None, :]
        gate_at = gate_up_ptr + at * (2 * H) + h[None, :]
        tl.store(gate_at, gate, mask=mask)
        tl.store(gate_at + H, up, mask=mask)
        gate = gate.to(tl.float32)
        hidden = (gate * tl.sigmoid(gate) * up.to(tl.float32)).to(dtype)
        tl.store(hidden_ptr + at * H + h[None, :], hidden, mask=mask)
        y = tl.dot(hidden, down_weight, y, input_precision="ieee")
    tl.store(y_ptr + at * D + d[None, :], y.to(dtype), mask=rows_in & d_in)


@triton.jit(do_not_specialize=["N"])
def _backward_kernel(
    grad_ptr,
    gate_up_ptr,
    gate_up_weight_ptr,
    down_weight_ptr,
    grad_x_ptr,
    grad_gate_up_ptr,
    N,
    D: tl.constexpr,
    H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, BLOCK_D)
    rows_in, d_in = (row < N)[:, None], (d < D)[None, :]
    at = (group * N + row)[:, None]
    grad = tl.load(grad_ptr + at * D + d[None, :], mask=rows_in & d_in, other=0.0)
    gate_weights = gate_up_weight_ptr + group * (2 * H * D)
    down_weights = down_weight_ptr + group * (D * H)
    dtype = grad.dtype
    grad_x = tl.zeros((ROWS, BLOCK_D), dtype=tl.float32)
    for start in tl.range(0, H, COLUMNS, num_stages=STAGES):
        h = start + tl.arange(0, COLUMNS)
        h_in = h < H
        mask = rows_in & h_in[None, :]
        gate_at = at * (2 * H) + h[None, :]
        gate = tl.load(gate_up_ptr + gate_at, mask=mask, other=0.0).to(tl.float32)
        up = tl.load(gate_up_ptr + gate_at + H, mask=mask, other=0.0).to(tl.float32)
        down_weight = tl.load(
            down_weights + d[:, None] * H + h[None, :], mask=(d < D)[:, None] & h_in[None, :], other=0.0
        )
        grad_hidden = tl.dot(grad, down_weight, input_precision="ieee")
        sigmoid = tl.sigmoid(gate)
        silu = gate * sigmoid
        grad_gate = (grad_hidden * up * (sigmoid + silu * (1.0 - sigmoid))).to(dtype)
        grad_up = (grad_hidden * silu).to(dtype)
        tl.store(grad_gate_up_ptr + gate_at, grad_gate, mask=mask)
        tl.store(grad_gate_up_ptr + gate_at + H, grad_up, mask=mask)
        weight_at = gate_weights + h[:, None] * D + d[None, :]
        gate_weight = tl.load(weight_at, mask=h_in[:, None] & d_in, other=0.0)
        up_weight = tl.load(weight_at + H * D, mask=h_in[:, None] & d_in, other=0.0)
        grad_x = tl.dot(grad_gate, gate_weight, grad_x, input_precision="ieee")
        grad_x = tl.dot(grad_up, up_weight, grad_x, input_precision="ieee")
    tl.store(grad_x_ptr + at * D + d[None, :], grad_x.to(dtype), mask=rows_in & d_in)


def forward(x: Tensor, gate_up_weight: Tensor, down_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`mlp` of `kernels.fused.mlp`."""
    groups, rows, width = x.shape
    inner = down_weight.shape[2]
    y, gate_up, hidden = (
        torch.empty((groups, rows, columns), dtype=x.dtype, device=x.device) for columns in (width, 2 * inner, inner)
    )
    _launch(_forward_kernel, FORWARD, (x, gate_up_weight, down_weight), (y, gate_up, hidden), inner)
    return y, gate_up, hidden


def backward(
    grad: Tensor, gate_up: Tensor, gate_up_weight: Tensor, down_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """`mlp_backward` of `kernels.fused.mlp`."""
    grad_x, grad_gate_up = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (grad, gate_up))
    inputs = grad, gate_up, gate_up_weight, down_weight
    _launch(_backward_kernel, BACKWARD, inputs, (grad_x, grad_gate_up), down_weight.shape[2])
    return grad_x, grad_gate_up


def _launch(kernel, configs: dict, inputs: tuple, outputs: tuple, inner: int) -> None:
    groups, rows, width = inputs[0].shape
    tile, columns, stages, warps = configs[inputs[0].dtype]
    if rows:
        kernel[triton.cdiv(rows, tile), groups](
            *(t.contiguous() for t in inputs),
            *outputs,
            rows,
            D=width,
            H=inner,
            BLOCK_D=max(triton.next_power_of_2(width), 16),
            ROWS=tile,
            COLUMNS=columns,
            STAGES=stages,
            num_warps=warps,
        )
