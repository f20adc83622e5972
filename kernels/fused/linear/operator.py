"""A linear layer as PyTorch operators: PyTorch's product forward, a Triton kernel for the gradient of the weight."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register


@torch.library.custom_op("mixerlab::linear", mutates_args=())
def matrix_product(x: Tensor, weight: Tensor) -> Tensor:
    """`x` `[groups, N, K]` times the transpose of `weight` `[groups, M, K]`: `[groups, N, M]`."""
    return torch.bmm(x, weight.mT)


@torch.library.custom_op("mixerlab::linear_with_bias", mutates_args=())
def product_and_bias(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`matrix_product` plus `bias` `[groups, M]`, rounded once."""
    y = x.new_empty((*x.shape[:2], weight.shape[1]))
    for group, rows in enumerate(x):  # the library adds a bias on the chip only to a single product
        torch.addmm(bias[group].to(x.dtype), rows, weight[group].mT, out=y[group])
    return y


@torch.library.custom_op("mixerlab::linear_weight_gradient", mutates_args=())
def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """`[groups, M, K]` from the result's gradient `[groups, N, M]` and `x` `[groups, N, K]`."""
    from mixerlab.kernels.fused.linear import triton_kernels  # here, because Triton is optional

    return triton_kernels.weight_gradient(grad, x)


@matrix_product.register_fake
def _(x, weight):
    return x.new_empty((*x.shape[:2], weight.shape[1]))


@product_and_bias.register_fake
def _(x, weight, bias):
    return x.new_empty((*x.shape[:2], weight.shape[1]))


@weight_gradient.register_fake
def _(grad, x):
    return x.new_empty((x.shape[0], grad.shape[2], x.shape[2]))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.bias_dtype = inputs[2].dtype if len(inputs) > 2 else None


def _gradients(ctx, grad):
    x, weight = ctx.saved_tensors
    of_x, of_weight, *of_bias = ctx.needs_input_grad
    return (
        torch.bmm(grad, weight) if of_x else None,
        weight_gradient(grad, x) if of_weight else None,
        *(grad.sum(dim=1, dtype=ctx.bias_dtype) if needed else None for needed in of_bias),
    )


register(matrix_product, save=_save, gradients=_gradients)
register(product_and_bias, save=_save, gradients=_gradients)
register(weight_gradient)
