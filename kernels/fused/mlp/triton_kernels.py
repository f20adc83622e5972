"""Triton kernels of a SwiGLU layer: one launch each way. Tensors as wide as its inner columns stay on the chip.

A program takes some rows and loops over the inner columns, as flash attention loops over keys; the weights come from
the L2 cache.
Forward: gates, ups and `silu(gate) * up` exist one tile at a time, and the result is summed in registers.
Backward: gates and ups are computed again from x, which takes less time than to write and read them. What the gradients
of the weights need is written: the gradients of gates and ups, and `silu(gate) * up`. The gradient of x is summed in
registers.
Gates and ups are rounded before they are multiplied, as they would be by three operators one after another.

Tried at width 128 and inner width 352 on an H200; microseconds for 3 x 131,072, 3 x 16,384 and 1 x 16,384 rows:

    forward, as it is: 229, 32, 15
        64 rows: 252, 32, 14; also with `tl.sigmoid`: 373, 47, 17; also writing gates and ups: 345, 50, 17
        gates and ups by two products, 128 rows, 8 warps: 238, 34, 15
    backward, as it is: 521, 72, 27
        two stages: 806, 99, 28
        128 rows, 8 warps: 569, 73, 26
        gates and ups read, not computed again, by two products: 562, 75, 28
        64 rows, 16 columns: 636, 86, 34
        inner columns ordered so that each thread writes what it holds, with a transposed copy of `down`: 500, 68, 25,
        which is half a percent of a step for thirty lines

The residual addition and the norm in the same launches would spare 0.2 GB each way for 3 x 131,072 rows. But the
forward was no faster (373 us before and after, 405 with 128 rows) and the backward slower (729 to 810), because nothing
overlaps with a program's first reads and last writes. A step of attention went from 8.30 to 8.62 ms.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_elementwise import sigmoid_for
from mixerlab.kernels.common.triton_halves import beside, left_right


@triton.jit
def _rounded(x, dtype: tl.constexpr):
    """`x` rounded to `dtype`, in float32. It converts two elements at once, where Triton's casts convert one."""
    if dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "{.reg .b32 t; cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xffff0000;}",
            "=f,=f,f,f",
            [x],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    return x


@triton.jit
def _gates_and_ups(x, weights, start, d, D, H, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Gates and ups of the inner columns from `start` on, rounded, and the weights of both, one above the other."""
    pair = tl.arange(0, 2 * COLUMNS)  # columns of gates, then of ups: one product computes both
    h = start + pair % COLUMNS
    at = (pair // COLUMNS * H + h)[:, None] * D + d[None, :]
    weight = tl.load(weights + at, mask=(h < H)[:, None] & (d < D)[None, :], other=0.0)
    both = _rounded(tl.dot(x, tl.trans(weight), input_precision="ieee"), x.dtype)
    gate, up = left_right(both, ROWS, COLUMNS)
    return gate, up, weight


@triton.jit(do_not_specialize=["N"])
def mlp_forward_kernel(
    x_ptr, gate_up_weight_ptr, down_weight_ptr, y_ptr,
    N, gate_up_weight_step, down_weight_step,
    D: tl.constexpr, H: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, BLOCK_D)
    rows_in, d_in = row < N - first, (d < D)[None, :]
    mask = rows_in & d_in
    at = row * D + d[None, :]
    before = (group * N + first) * D
    x = tl.load(x_ptr + before + at, mask=mask, other=0.0)
    gate_up_weights = gate_up_weight_ptr + group * gate_up_weight_step
    down_weights = down_weight_ptr + group * down_weight_step
    dtype = x.dtype
    y = tl.zeros((ROWS, BLOCK_D), dtype=tl.float32)
    for start in tl.range(0, H, COLUMNS, num_stages=STAGES):
        gate, up, _ = _gates_and_ups(x, gate_up_weights, start, d, D, H, ROWS, COLUMNS)
        hidden = gate * sigmoid_for(gate, dtype) * up
        h = (start + tl.arange(0, COLUMNS))[None, :]
        down_weight = tl.load(down_weights + d[:, None] * H + h, mask=(d < D)[:, None] & (h < H), other=0.0)
        y = tl.dot(hidden.to(dtype), tl.trans(down_weight), y, input_precision="ieee")
    tl.store(y_ptr + before + at, y, mask=mask)


@triton.jit(do_not_specialize=["N"])
def mlp_backward_kernel(
    grad_ptr, x_ptr, gate_up_weight_ptr, down_weight_ptr, grad_x_ptr, grad_gate_up_ptr, hidden_ptr,
    N, gate_up_weight_step, down_weight_step,
    D: tl.constexpr, H: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    d = tl.arange(0, BLOCK_D)
    rows_in, d_in = row < N - first, (d < D)[None, :]
    mask = rows_in & d_in
    at = row * D + d[None, :]
    before = group * N + first
    grad = tl.load(grad_ptr + before * D + at, mask=mask, other=0.0)
    x = tl.load(x_ptr + before * D + at, mask=mask, other=0.0)
    gate_up_weights = gate_up_weight_ptr + group * gate_up_weight_step
    down_weights = down_weight_ptr + group * down_weight_step
    dtype = grad.dtype
    grad_x = tl.zeros((ROWS, BLOCK_D), dtype=tl.float32)
    for start in tl.range(0, H, COLUMNS, num_stages=STAGES):
        gate, up, weight = _gates_and_ups(x, gate_up_weights, start, d, D, H, ROWS, COLUMNS)
        h = (start + tl.arange(0, COLUMNS))[None, :]
        down_weight = tl.load(down_weights + d[:, None] * H + h, mask=(d < D)[:, None] & (h < H), other=0.0)
        grad_hidden = tl.dot(grad, down_weight, input_precision="ieee")
        sigmoid = sigmoid_for(gate, dtype)
        silu = gate * sigmoid
        hidden = (silu * up).to(dtype)
        grad_gate = (grad_hidden * up * (sigmoid + silu * (1.0 - sigmoid))).to(dtype)
        grad_up = (grad_hidden * silu).to(dtype)
        inside = rows_in & (h < H)
        grad_at = grad_gate_up_ptr + before * (2 * H) + (row * (2 * H) + h)
        tl.store(grad_at, grad_gate, mask=inside)
        tl.store(grad_at + H, grad_up, mask=inside)
        tl.store(hidden_ptr + before * H + (row * H + h), hidden, mask=inside)
        grad_gate_up = beside(grad_gate, grad_up, ROWS, COLUMNS)
        grad_x = tl.dot(grad_gate_up, weight, grad_x, input_precision="ieee")
    tl.store(grad_x_ptr + before * D + at, grad_x, mask=mask)
