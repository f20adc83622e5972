"""RMSNorm of looked-up rows and an update as PyTorch operators. Their kernels are those of `rms_norm`."""

import torch
from torch import Tensor

from mixerlab.kernels.common.addressing import whole_rows
from mixerlab.kernels.common.registration import register
from mixerlab.kernels.fused.embedding.operator import look_up_backward, sum_by_token
from mixerlab.kernels.fused.rms_norm.operator import SUMMED, launch_backward, launch_forward, sum_gradients


@torch.library.custom_op("mixerlab::embedded_add_rms_norm", mutates_args=())
def look_up_add_norm(
    tokens: Tensor, table: Tensor, y: Tensor, weight: Tensor, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The norm of rows `tokens` `[groups, N]` of `table` `[groups, V, D]` plus `y` `[groups, N, D]`.

    Returns the `zero` of an `EmbeddedSum`, which stands for the sum under autograd, and the norm.
    """
    _, normed = results = _results(tokens, table, y, weight, eps, out_dtype)
    launch_forward(tokens.contiguous(), whole_rows(table), y, None, weight, eps, None, normed)
    return results


@look_up_add_norm.register_fake
def _results(tokens, table, y, weight, eps, out_dtype):
    zero = y.new_zeros((), dtype=torch.float32).expand(y.shape)
    return zero, y.new_empty(y.shape, dtype=out_dtype)


@torch.library.custom_op("mixerlab::embedded_add_rms_norm_backward", mutates_args=())
def look_up_add_norm_backward(
    grad: Tensor,
    grad_past: Tensor | None,
    tokens: Tensor,
    table: Tensor,
    y: Tensor,
    weight: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Gradient of `y`, and float32 `[groups, 1 + V, D]`: the gradient of `weight`, then that of `table`."""
    vocabulary, grad_y = table.shape[1], y.new_empty(y.shape)
    # For a large vocabulary a second kernel adds up by token what the first one writes.
    grad_x = None if vocabulary <= max(SUMMED) else y.new_empty(y.shape, dtype=torch.float32)
    given = tokens.contiguous(), grad, grad_past, whole_rows(table), y.contiguous(), weight, eps
    sums = launch_backward(*given, grad_x, grad_y)
    if grad_x is not None:
        sums = torch.cat((sums, sum_by_token(grad_x, tokens, vocabulary, torch.float32)), dim=1)
    return grad_y, sums


@look_up_add_norm_backward.register_fake
def _(grad, grad_past, tokens, table, y, weight, eps):
    groups, vocabulary, width = table.shape
    return y.new_empty(y.shape), y.new_empty((groups, 1 + vocabulary, width), dtype=torch.float32)


@torch.library.custom_op("mixerlab::embedded_sum_add_rms_norm", mutates_args=())
def sum_add_norm(
    zero: Tensor,
    tokens: Tensor,
    table: Tensor,
    y: Tensor,
    z: Tensor,
    weight: Tensor,
    eps: float,
    out_dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """`add_norm` of an `EmbeddedSum` and `z`. The gradient of the sum is returned as that of `zero`."""
    total, normed = results = _sum_results(zero, tokens, table, y, z, weight, eps, out_dtype)
    launch_forward(tokens.contiguous(), whole_rows(table), y, z, weight, eps, total, normed)
    return results


@sum_add_norm.register_fake
def _sum_results(zero, tokens, table, y, z, weight, eps, out_dtype):
    return z.new_empty(z.shape, dtype=torch.float32), z.new_empty(z.shape, dtype=out_dtype)


def _save(ctx, inputs, output):
    *tensors, ctx.eps, _ = inputs
    ctx.set_materialize_grads(False)  # None, not zeros, for a result whose gradient is not needed
    ctx.save_for_backward(*tensors)


def _gradients(ctx, grad_past, grad):
    tokens, table, y, weight = ctx.saved_tensors
    if grad is None:
        return None, look_up_backward(grad_past, tokens, table), grad_past.to(y.dtype), None
    grad_y, sums = look_up_add_norm_backward(grad, grad_past, tokens, table, y, weight, ctx.eps)
    return None, sums[:, 1:], grad_y, sums[:, 0].to(weight.dtype)


def _save_sum(ctx, inputs, output):
    *_, z, weight, ctx.eps, _ = inputs
    ctx.dtypes = torch.float32, z.dtype  # of zero and z, which take the places of x and y in `add_norm`
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[0], weight)


def _sum_gradients(ctx, grad_past, grad):
    of_zero, of_z, of_weight = sum_gradients(ctx, grad_past, grad)
    return of_zero, None, None, None, of_z, of_weight


register(look_up_add_norm, save=_save, gradients=_gradients, options=2)
register(sum_add_norm, save=_save_sum, gradients=_sum_gradients, options=2)
register(look_up_add_norm_backward)
