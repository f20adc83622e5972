"""Mamba's block as PyTorch operators. Its steps pass slices of packed tensors to each other."""

import torch
from torch import Tensor

from mixerlab.kernels.common.addressing import addressable
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.fused.linear.operator import weight_gradient
from mixerlab.kernels.selective_scan import triton_scan
from mixerlab.kernels.selective_scan.block import triton_projections
from mixerlab.kernels.selective_scan.operator import parameter_gradients
from mixerlab.kernels.short_convolution import triton_convolution
from mixerlab.kernels.short_convolution.operator import parameter_gradients as convolution_gradients


@operator("mamba_block")
def block(
    xz, x_proj, dt_proj, conv_weight, conv_bias, dt_bias, A_log, D
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`mamba_block` for groups of parameters, and what the backward needs.

    That is `u`, `dt`, `delta`, B and C in float32, the result before its gate, and the states that the backward of the
    scan starts from.
    """
    x, z = addressable(xz).chunk(2, dim=-1)  # both halves, because their gradients are written through the same offsets
    u = x.new_empty(x.shape)
    triton_convolution.forward(x, conv_weight, conv_bias, [u])
    dt, delta, BC = triton_projections.scan_inputs(u, x_proj, dt_proj)
    y, ungated, states = triton_scan.forward(u, delta, dt_bias, A_log, BC, D, z, from_log=True)
    return y, u, dt, delta, BC, ungated, states


@operator("mamba_block_backward")
def block_backward(
    grad, xz, x_proj, dt_proj, conv_weight, conv_bias, dt_bias, A_log, D, u, dt, delta, BC, ungated, states
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `xz`, `x_proj` and `dt_proj`, and those of the parameters of convolution and scan, packed in two."""
    groups = len(dt_proj)
    x, z = addressable(xz).chunk(2, dim=-1)
    grad_xz = xz.new_empty(xz.shape)
    grad_x, grad_z = grad_xz.chunk(2, dim=-1)
    grad_u, grad_delta, of_BC, of_scan = triton_scan.backward(
        grad, u, delta, dt_bias, A_log, BC, D, z, ungated, states, grad_z, from_log=True
    )
    grad_dt_bc = triton_projections.scan_inputs_backward(of_BC, grad_delta, x_proj, dt_proj, grad_u)
    of_dt_proj = weight_gradient(_rows(grad_delta, groups), _rows(dt, groups))
    of_x_proj = weight_gradient(_rows(grad_dt_bc, groups), _rows(u, groups))
    of_convolution = triton_convolution.backward([grad_u], x, conv_weight, conv_bias, grad_x)
    return grad_xz, of_x_proj, of_dt_proj, of_convolution, of_scan


def _rows(x: Tensor, groups: int) -> Tensor:
    """`[batch, T, width]` as `[groups, rows, width]`, a view."""
    return x.view(groups, -1, x.shape[-1])


@block.register_fake
def _(xz, x_proj, dt_proj, conv_weight, conv_bias, dt_bias, A_log, D):
    batch, length, _ = xz.shape
    u = xz.new_empty((batch, length, dt_proj.shape[1]))
    BC = xz.new_empty((batch, length, 2 * A_log.shape[2]), dtype=torch.float32)
    dt, delta = u.new_empty((batch, length, dt_proj.shape[2])), u.new_empty(u.shape)
    y, ungated, states = triton_scan.empty_results(u, A_log)
    return y, u, dt, delta, BC, ungated, states


@block_backward.register_fake
def _(grad, xz, x_proj, dt_proj, conv_weight, conv_bias, dt_bias, A_log, D, u, dt, delta, BC, ungated, states):
    groups, channels, n = A_log.shape
    of_convolution = A_log.new_empty((groups, channels * (conv_weight.shape[2] + 1)))
    of_scan = A_log.new_empty((groups, channels * (n + 2)))
    return *(t.new_empty(t.shape) for t in (xz, x_proj, dt_proj)), of_convolution, of_scan


def _gradients(ctx, grad, *_):
    _, _, dt_proj, conv_weight, *_ = saved = ctx.saved_tensors
    *of_large, of_convolution, of_scan = block_backward(grad, *saved)
    of_A_log, of_D, of_bias = parameter_gradients(of_scan, dt_proj.shape[1])
    return *of_large, *convolution_gradients(of_convolution, conv_weight.shape[2]), of_bias, of_A_log, of_D


register_gradient(block, _gradients)
