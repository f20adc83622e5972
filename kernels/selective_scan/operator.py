"""The Triton scan as PyTorch operators.

Each replica has a group of parameters: `A` is `[groups, channels, N]`, `D` and `delta_bias` are `[groups, channels]`,
and sequence b of the batch belongs to group b // (batch / groups). These are float32, and so is `BC` `[batch, T, 2 N]`,
which holds B and then C.
"""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.selective_scan import triton_scan


@operator("selective_scan")
def scan(u, delta, delta_bias, A, BC, D, z) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the output before its gate, and the states that the backward starts from."""
    return triton_scan.forward(u, delta, delta_bias, A, BC, D, z)


@operator("selective_scan_backward")
def scan_backward(
    grad, u, delta, delta_bias, A, BC, D, z, ungated, states
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `u`, `delta`, `BC` and `z`, and in one tensor those of the parameters (`parameter_gradients`)."""
    grad_z = z.new_empty(z.shape)
    grad_u, grad_delta, of_BC, of_parameters = triton_scan.backward(
        grad, u, delta, delta_bias, A, BC, D, z, ungated, states, grad_z
    )
    grad_BC = sum_parts(of_BC[None], torch.float32)[0].view(BC.shape)
    return grad_u, grad_delta, grad_BC, grad_z, of_parameters


@scan.register_fake
def _(u, delta, delta_bias, A, BC, D, z):
    return triton_scan.empty_results(u, A)


@scan_backward.register_fake
def _(grad, u, delta, delta_bias, A, BC, D, z, ungated, states):
    groups, channels, n = A.shape
    of_parameters = A.new_empty((groups, channels * (n + 2)))
    return *(x.new_empty(x.shape) for x in (u, delta, BC, z)), of_parameters


def parameter_gradients(packed: Tensor, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of A, D and `delta_bias`, as views of `packed` `[groups, channels * (N + 2)]`."""
    of_A, of_D, of_bias = packed.split((packed.shape[1] - 2 * channels, channels, channels), dim=1)
    return of_A.unflatten(1, (channels, -1)), of_D, of_bias


def _gradients(ctx, grad, *_):
    of_u, of_delta, of_BC, of_z, of_parameters = scan_backward(grad, *ctx.saved_tensors)
    of_A, of_D, of_bias = parameter_gradients(of_parameters, of_u.shape[2])
    return of_u, of_delta, of_bias, of_A, of_BC, of_D, of_z


register_gradient(scan, _gradients)
