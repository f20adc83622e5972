"""Triton kernels of SwiGLU's gate. A program takes a tile of rows and columns; each tensor has its own row stride."""

import triton
import triton.language as tl


@triton.jit
def _tile(N, H, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """This program's rows (int64) and columns, and which of them exist."""
    across = tl.cdiv(H, COLUMNS)
    row = (tl.program_id(0) // across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)
    return row[:, None], column[None, :], (row < N)[:, None] & (column < H)[None, :]


@triton.jit(do_not_specialize=["N"])
def swiglu_forward_kernel(
    gate_ptr, up_ptr, y_ptr, N, H, gate_row, up_row, y_row, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row, column, mask = _tile(N, H, ROWS, COLUMNS)
    gate = tl.load(gate_ptr + row * gate_row + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_row + column, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + row * y_row + column, y, mask=mask)


@triton.jit(do_not_specialize=["N"])
def swiglu_backward_kernel(
    grad_ptr, gate_ptr, up_ptr, grad_gate_ptr, grad_up_ptr,
    N, H, grad_row, gate_row, up_row, grad_gate_row, grad_up_row,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row, column, mask = _tile(N, H, ROWS, COLUMNS)
    grad = tl.load(grad_ptr + row * grad_row + column, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_row + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row * up_row + column, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    grad_gate = grad * up * (sigmoid + silu * (1.0 - sigmoid))
    tl.store(grad_gate_ptr + row * grad_gate_row + column, grad_gate, mask=mask)
    tl.store(grad_up_ptr + row * grad_up_row + column, grad * silu, mask=mask)
