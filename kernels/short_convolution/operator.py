"""The Triton convolution as PyTorch operators: shapes for tracing, gradients, replicas folded under vmap.

Replicas share one launch: `weight` is `[groups, channels, taps]`, `bias` `[groups, channels]`, and sequence b
of the batch belongs to group b // (batch / groups).
"""

from functools import partial

import torch
from torch import Tensor

from kernels.dispatch import fold_replicas


@torch.library.custom_op("mixerlab::short_convolution", mutates_args=())
def convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """`short_convolution` for groups of parameters."""
    from kernels.short_convolution import triton_convolution  # only where it runs: Triton is optional

    return triton_convolution.forward(x, weight, bias)


@torch.library.custom_op("mixerlab::short_convolution_backward", mutates_args=())
def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `x`, `weight` and `bias`; computes the convolution again, so nothing else is saved."""
    from kernels.short_convolution import triton_convolution

    return triton_convolution.backward(grad, x, weight, bias)


@convolution.register_fake
def _(x, weight, bias):
    return x.new_empty(x.shape)


@convolution_backward.register_fake
def _(grad, x, weight, bias):
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradients(ctx, grad):
    return convolution_backward(grad, *ctx.saved_tensors)


convolution.register_autograd(_gradients, setup_context=_save)
for op in (convolution, convolution_backward):
    torch.library.register_vmap(op, partial(fold_replicas, op))
