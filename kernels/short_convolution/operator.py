"""The Triton convolution as PyTorch operators.

Each replica has a group of parameters: `weight` is `[groups, channels, taps]`, `bias` `[groups, channels]`, and
sequence b of the batch belongs to group b // (batch / groups).
"""

from torch import Tensor

from mixerlab.kernels.common.addressing import addressable
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.short_convolution import triton_convolution


@operator("short_convolution", like="x")
def convolution(x, weight, bias):
    """`short_convolution` for groups of parameters."""
    y = x.new_empty(x.shape)
    triton_convolution.forward(x, weight, bias, [y])
    return y


@operator("short_convolution_backward")
def convolution_backward(grad, x, weight, bias) -> tuple[Tensor, Tensor]:
    """Gradients of `x`, and of `weight` and `bias` in one tensor `[groups, channels * (taps + 1)]`.

    It computes the convolution again, so that only the inputs are saved.
    """
    grad_x = x.new_empty(x.shape)
    return grad_x, triton_convolution.backward([addressable(grad)], x, weight, bias, grad_x)


@convolution_backward.register_fake
def _(grad, x, weight, bias):
    return x.new_empty(x.shape), weight.new_empty((weight.shape[0], weight[0].numel() + bias[0].numel()))


def _gradients(ctx, grad):
    x, weight, bias = ctx.saved_tensors
    grad_x, of_parameters = convolution_backward(grad, x, weight, bias)
    return grad_x, *parameter_gradients(of_parameters, weight.shape[2])


def parameter_gradients(packed: Tensor, taps: int) -> tuple[Tensor, Tensor]:
    """The gradients of weight `[groups, channels, taps]` and bias `[groups, channels]`, as views of `packed`."""
    channels = packed.shape[1] // (taps + 1)
    of_weight, of_bias = packed.split((channels * taps, channels), dim=1)
    return of_weight.unflatten(1, (channels, taps)), of_bias


register_gradient(convolution, _gradients)
