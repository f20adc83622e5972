"""The Triton RMSNorm as PyTorch operators, with and without the residual addition before it."""

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.registration import fold_replicas, operator, register_gradient
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.fused.rms_norm.triton_kernels import rms_norm_backward_kernel, rms_norm_forward_kernel

TILE = 2048  # elements
FORWARD_WARPS = 4
# (warps, programs for each multiprocessor of all groups together, stages). The backward keeps more of a tile than the
# forward: it took 236 us with 4 warps and 201 us with 8 (3 x 131,072 rows).
BACKWARD = (8, 4, 3)


@operator("rms_norm")
def norm(x, weight, eps: float, out_dtype: torch.dtype):
    """`rms_norm` of `x` `[groups, N, D]` with `weight` `[groups, D]`."""
    normed = x.new_empty(x.shape, dtype=out_dtype)
    _launch_forward(x, None, weight, eps, None, normed)
    return normed


@norm.register_fake
def _(x, weight, eps, out_dtype):
    return x.new_empty(x.shape, dtype=out_dtype)


@operator("add_rms_norm")
def add_norm(x, y, weight, eps: float, out_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` of `x` and `y` `[groups, N, D]` with `weight` `[groups, D]`."""
    total, normed = results = _sum_results(x, y, weight, eps, out_dtype)
    _launch_forward(x, y, weight, eps, total, normed)
    return results


@add_norm.register_fake
def _sum_results(x, y, weight, eps, out_dtype):
    total = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype))
    return total, x.new_empty(x.shape, dtype=out_dtype)


@operator("rms_norm_backward")
def norm_backward(
    grad, grad_past: Tensor | None, x, weight, eps: float, copy_dtype: torch.dtype | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `x` and of `weight`, and the first once more in `copy_dtype` (without rows if that is None).

    `grad_past`, the gradient that reaches `x` past the norm, is added to that of `x`.
    """
    x, weight = x.contiguous(), unit_stride(weight)
    groups, rows, width = x.shape
    grad_x, copy = x.new_empty(x.shape), _empty_copy(x, copy_dtype)
    block = _block(width)
    tile, (warps, programs, stages) = max(1, TILE // block), BACKWARD
    parts = min(triton.cdiv(rows, tile), max(1, programs * processors(x.device) // groups))
    sums = x.new_empty((groups, parts, width), dtype=torch.float32)
    if x.numel():
        past = None if grad_past is None else grad_past.contiguous()
        rms_norm_backward_kernel[parts, groups](
            *(grad.contiguous(), past, x, weight, grad_x, copy if copy_dtype else None, sums),
            *(rows, weight.stride(0), eps),
            D=width,
            BLOCK_D=block,
            ROWS=tile,
            num_warps=warps,
            num_stages=stages,
        )
    return grad_x, sum_parts(sums, weight.dtype), copy


@norm_backward.register_fake
def _(grad, grad_past, x, weight, eps, copy_dtype):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), _empty_copy(x, copy_dtype)


def _empty_copy(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Memory for `x` `[groups, N, D]` in `dtype`. None stands for no copy, and gives a tensor without rows.

    An operator's results cannot be optional: this is how one says that there is none.
    """
    groups, rows, width = x.shape
    return torch.empty((groups, rows if dtype else 0, width), dtype=dtype or x.dtype, device=x.device)


def _launch_forward(
    x: Tensor, y: Tensor | None, weight: Tensor, eps: float, total: Tensor | None, normed: Tensor
) -> None:
    """Fills `total` and `normed`."""
    groups, rows, width = x.shape
    weight = unit_stride(weight)
    if x.numel():
        block = _block(width)
        tile = max(1, TILE // block)
        rms_norm_forward_kernel[triton.cdiv(rows, tile), groups](
            *(x.contiguous(), None if y is None else y.contiguous(), weight, total, normed),
            *(rows, weight.stride(0), eps),
            D=width,
            BLOCK_D=block,
            ROWS=tile,
            num_warps=FORWARD_WARPS,
        )


def _block(width: int) -> int:
    return max(16, triton.next_power_of_2(width))


def _gradients(ctx, grad):
    eps, _ = ctx.options
    grad_x, grad_weight, _ = norm_backward(grad, None, *ctx.saved_tensors, eps, None)
    return grad_x, grad_weight


def _save_sum(ctx, inputs, output):
    x, y, weight, ctx.eps, _ = inputs
    ctx.dtypes = x.dtype, y.dtype
    ctx.set_materialize_grads(False)  # None, not zeros, for a result whose gradient is not needed
    ctx.save_for_backward(output[0], weight)


def _sum_gradients(ctx, grad_past: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
    x_dtype, y_dtype = ctx.dtypes
    if grad is None:
        assert grad_past is not None  # autograd calls this only if a result has a gradient
        return grad_past.to(x_dtype), grad_past.to(y_dtype), None
    total, weight = ctx.saved_tensors
    narrow = y_dtype if x_dtype == total.dtype else x_dtype
    copy_dtype = narrow if narrow != total.dtype else None
    grad_total, grad_weight, copy = norm_backward(grad, grad_past, total, weight, ctx.eps, copy_dtype)
    grad_x, grad_y = (grad_total if dtype == total.dtype else copy for dtype in ctx.dtypes)
    return grad_x, grad_y, grad_weight


class InputAndNorm(torch.autograd.Function):
    """Returns `x` and its norm, so that one backward adds up both gradients of `x`.

    A function, because an operator cannot return its input.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        x = x.contiguous()  # once, not in each kernel
        return x.view_as(x), norm(x, weight, eps, out_dtype)  # a view: an input that is also an output cannot be saved

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.set_materialize_grads(False)
        _, weight, ctx.eps, _ = inputs
        ctx.save_for_backward(output[0], weight)

    @staticmethod
    def backward(ctx, grad_past: Tensor | None, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return grad_past, None, None, None
        grad_x, grad_weight, _ = norm_backward(grad, grad_past, *ctx.saved_tensors, ctx.eps, None)
        return grad_x, grad_weight, None, None

    @staticmethod
    def vmap(info, in_dims, *args):
        return fold_replicas(InputAndNorm.apply, info, in_dims, *args)


register_gradient(norm, _gradients)
register_gradient(add_norm, _sum_gradients, save=_save_sum)
