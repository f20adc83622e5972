"""The Triton norm and linear layer as PyTorch operators."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.addressing import empty_copy, unit_stride
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.registration import register
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.fused.norm_linear.triton_kernels import norm_linear_backward_kernel, norm_linear_forward_kernel

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
# (programs for each multiprocessor, of all groups together; rows of a step, warps, stages), for up to 32 outputs and
# for more.
FORWARD = (2, 32, 4, 3), (2, 32, 8, 3)
BACKWARD = (4, 16, 4, 3), (1, 64, 8, 1)
UNIT = 4  # float32 elements of the widest load: V is passed as a multiple of it, or of the power of two that divides V


@torch.library.custom_op("mixerlab::norm_linear", mutates_args=())
def norm_linear_rows(
    x: Tensor, y: Tensor | None, gain: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype
) -> Tensor:
    """`norm_linear` of `x` and `y` `[groups, N, D]`, whose products are of `dtype`: float32 `[groups, N, V]`."""
    groups, rows, _ = x.shape
    out = _empty_product(x, y, gain, weight, bias, eps, dtype)
    gain, weight, bias = unit_stride(gain), unit_stride(weight), unit_stride(bias)
    parts, tile = _launch(x, weight, dtype, FORWARD)
    if out.numel():
        norm_linear_forward_kernel[parts, groups](
            *(x.contiguous(), None if y is None else y.contiguous(), gain, weight, bias, out),
            *(rows, weight.shape[1] // tile["UNIT"]),
            *(gain.stride(0), *weight.stride()[:2], bias.stride(0), eps),
            **tile,
        )
    return out


@norm_linear_rows.register_fake
def _empty_product(x, y, gain, weight, bias, eps, dtype):
    return x.new_empty((*x.shape[:2], weight.shape[1]), dtype=torch.float32)


@torch.library.custom_op("mixerlab::norm_linear_backward", mutates_args=())
def norm_linear_rows_backward(
    grad: Tensor, x: Tensor, y: Tensor | None, gain: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `x` and of `y`, and `[groups, V D + D + V]` with those of weight, gain and bias side by side.

    If `y` has the dtype of `x`, its gradient is the same tensor and is not returned a second time: it has no rows.
    """
    groups, rows, width = x.shape
    outputs = weight.shape[1]
    grad_x, copy = x.new_empty(x.shape), empty_copy(x, _other_dtype(x, y))
    parts, tile = _launch(x, weight, dtype, BACKWARD)
    sums = x.new_empty((groups, parts, outputs * width + width + outputs), dtype=torch.float32)
    gain, weight = unit_stride(gain), unit_stride(weight)
    if grad.numel():
        norm_linear_backward_kernel[parts, groups](
            *(grad.contiguous(), x.contiguous(), None if y is None else y.contiguous(), gain, weight),
            *(grad_x, copy if copy.numel() else None, sums),
            *(rows, outputs // tile["UNIT"], gain.stride(0), *weight.stride()[:2], eps),
            **tile,
        )
    return grad_x, copy, sum_parts(sums, torch.float32)


@norm_linear_rows_backward.register_fake
def _(grad, x, y, gain, weight, eps, dtype):
    groups, outputs, width = weight.shape
    sums = x.new_empty((groups, outputs * width + width + outputs), dtype=torch.float32)
    return x.new_empty(x.shape), empty_copy(x, _other_dtype(x, y)), sums


def _other_dtype(x: Tensor, y: Tensor | None) -> torch.dtype | None:
    """The dtype of `y` if it differs from that of `x`, so that `y` needs a gradient of its own."""
    return None if y is None or y.dtype == x.dtype else y.dtype


def _launch(x: Tensor, weight: Tensor, dtype: torch.dtype, configs: tuple) -> tuple[int, dict]:
    """How many programs each group has, and the compile-time arguments."""
    groups, rows, width = x.shape
    outputs = weight.shape[1]
    block_v, block_d = (max(16, triton.next_power_of_2(size)) for size in (outputs, width))
    programs, step, warps, stages = configs[block_v > 32]
    tile = {
        "UNIT": math.gcd(UNIT, outputs),
        "D": width,
        "BLOCK_V": block_v,
        "BLOCK_D": block_d,
        "ROWS": step,
        "DTYPE": DTYPES[dtype],
        "num_warps": warps,
        "num_stages": stages,
    }
    return min(triton.cdiv(rows, step), max(1, programs * processors(x.device) // groups)), tile


def _gradients(ctx, grad):
    x, y, gain, weight, bias = ctx.saved_tensors
    grad_x, grad_y, sums = norm_linear_rows_backward(grad, x, y, gain, weight, *ctx.options)
    if not _other_dtype(x, y):
        grad_y = None if y is None else grad_x
    outputs, width = weight.shape[1:]
    of_weight, of_gain, of_bias = sums.split((outputs * width, width, outputs), dim=1)
    of_weight = of_weight.unflatten(1, (outputs, width))
    return grad_x, grad_y, of_gain.to(gain.dtype), of_weight.to(weight.dtype), of_bias.to(bias.dtype)


register(norm_linear_rows, gradients=_gradients, options=2)
register(norm_linear_rows_backward)
