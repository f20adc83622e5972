"""Triton kernels of `norm_linear`: a fixed number of programs stride over the rows, with the whole weight in registers.

With u = (x + y) / rms, the result is u (W gain)^T + bias. Each program multiplies the gain into the weight once. With
G = (gradient of the result)^T u, of the shape of W, the gradient of W is G gain and that of the gain is sum_v G W: one
product gives both. Each program writes its part of these and of the gradient of the bias, and the parts are added up
afterwards. No atomics: the result has the same bits every time.
"""

import triton
import triton.language as tl

# One build for any number of rows, for weights at any place among the population's parameters, and for all V that share
# a unit and BLOCK_V.
ANY = {
    "do_not_specialize": ["N", "units", "gain_group", "weight_group", "weight_row", "bias_group"],
    "do_not_specialize_on_alignment": ["gain_ptr", "weight_ptr", "bias_ptr"],
}


@triton.jit
def _load_sum(x_ptr, y_ptr, first, at, mask):
    x = tl.load(x_ptr + first + at, mask=mask, other=0.0).to(tl.float32)
    if y_ptr is not None:
        x += tl.load(y_ptr + first + at, mask=mask, other=0.0).to(tl.float32)
    return x


@triton.jit
def _load_weights(gain_ptr, weight_ptr, weight_row, v, d, V, D: tl.constexpr):
    gain = tl.load(gain_ptr + d, mask=d < D, other=0.0)
    mask = (v < V)[:, None] & (d < D)[None, :]
    weight = tl.load(weight_ptr + v[:, None] * weight_row + d[None, :], mask=mask, other=0.0)
    return gain.to(tl.float32), weight.to(tl.float32)


@triton.jit(**ANY)
def norm_linear_forward_kernel(
    x_ptr,
    y_ptr,  # None: nothing is added
    gain_ptr, weight_ptr, bias_ptr, out_ptr,
    N,
    units,  # V / UNIT
    gain_group, weight_group, weight_row, bias_group, eps,
    UNIT: tl.constexpr, D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    group, V = tl.program_id(1).to(tl.int64), units * UNIT
    v, d = tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_D)
    bias = tl.load(bias_ptr + group * bias_group + v, mask=v < V, other=0.0).to(tl.float32)
    gain_ptr += group * gain_group
    weight_ptr += group * weight_group
    gain, weight = _load_weights(gain_ptr, weight_ptr, weight_row, v, d, V, D)
    scaled = (weight * gain[None, :]).to(DTYPE)
    row = tl.arange(0, ROWS)
    for start in range(tl.program_id(0) * ROWS, N, tl.num_programs(0) * ROWS):
        first, inside = group * N + start, (start + row < N)[:, None]
        x = _load_sum(x_ptr, y_ptr, first * D, row[:, None] * D + d[None, :], inside & (d < D)[None, :])
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)
        out = tl.dot((x * scale[:, None]).to(DTYPE), tl.trans(scaled), input_precision="ieee") + bias[None, :]
        tl.store(out_ptr + first * V + (row[:, None] * V + v[None, :]), out, mask=inside & (v < V)[None, :])


@triton.jit(**ANY)
def norm_linear_backward_kernel(
    grad_ptr, x_ptr,
    y_ptr,  # None: nothing is added
    gain_ptr, weight_ptr, grad_x_ptr,
    copy_ptr,  # None: no second copy of the gradient of x
    sums_ptr,
    N,
    units,  # V / UNIT
    gain_group, weight_group, weight_row, eps,
    UNIT: tl.constexpr, D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    group, V = tl.program_id(1).to(tl.int64), units * UNIT
    part, parts = tl.program_id(0), tl.num_programs(0)
    v, d = tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_D)
    gain_ptr += group * gain_group
    weight_ptr += group * weight_group
    gain, weight = _load_weights(gain_ptr, weight_ptr, weight_row, v, d, V, D)
    scaled = (weight * gain[None, :]).to(DTYPE)
    products = tl.zeros((BLOCK_V, BLOCK_D), dtype=tl.float32)  # G
    grad_bias = tl.zeros((ROWS, BLOCK_V), dtype=tl.float32)
    row = tl.arange(0, ROWS)
    at = row[:, None] * D + d[None, :]
    for start in range(part * ROWS, N, parts * ROWS):
        first, inside = group * N + start, (start + row < N)[:, None]
        mask = inside & (d < D)[None, :]
        grad_at = grad_ptr + first * V + (row[:, None] * V + v[None, :])
        grad = tl.load(grad_at, mask=inside & (v < V)[None, :], other=0.0)
        x = _load_sum(x_ptr, y_ptr, first * D, at, mask)
        scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
        x *= scale
        grad_bias += grad
        low = grad.to(DTYPE)
        products = tl.dot(tl.trans(low), x.to(DTYPE), products, input_precision="ieee")
        grad_x = tl.dot(low, scaled, input_precision="ieee")
        grad_x = scale * (grad_x - x * (tl.sum(grad_x * x, axis=1) / D)[:, None])
        tl.store(grad_x_ptr + first * D + at, grad_x, mask=mask)
        if copy_ptr is not None:
            tl.store(copy_ptr + first * D + at, grad_x, mask=mask)
    sums = sums_ptr + (group * parts + part) * (V * D + D + V)
    gain, weight = _load_weights(gain_ptr, weight_ptr, weight_row, v, d, V, D)  # not kept in registers until here
    tl.store(sums + v[:, None] * D + d[None, :], products * gain[None, :], mask=(v < V)[:, None] & (d < D)[None, :])
    tl.store(sums + V * D + d, tl.sum(products * weight, axis=0), mask=d < D)
    tl.store(sums + V * D + D + v, tl.sum(grad_bias, axis=0), mask=v < V)
