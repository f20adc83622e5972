"""The Triton scan as PyTorch operators: shapes for tracing, gradients, replicas folded under vmap.

All but u, delta and z is float32. Replicas share one launch: `A` is `[groups, channels, N]`, `D` and
`delta_bias` `[groups, channels]`, and sequence b of the batch belongs to group b // (batch / groups).
"""

from functools import partial

import torch
from torch import Tensor

from kernels.dispatch import fold_replicas
from kernels.selective_scan.tiles import forward_tiles


@torch.library.custom_op("mixerlab::selective_scan", mutates_args=())
def scan(
    u: Tensor, delta: Tensor, delta_bias: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """The output, and the states that the backward pass starts from (float32, layout of the kernel's own)."""
    from kernels.selective_scan import triton_scan  # only where it runs: Triton is optional

    return triton_scan.forward(u, delta, delta_bias, A, B, C, D, z)


@torch.library.custom_op("mixerlab::selective_scan_backward", mutates_args=())
def scan_backward(
    grad: Tensor,
    u: Tensor,
    delta: Tensor,
    delta_bias: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    states: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in the order of the inputs of `scan`."""
    from kernels.selective_scan import triton_scan

    return triton_scan.backward(grad, u, delta, delta_bias, A, B, C, D, z, states)


@scan.register_fake
def _(u, delta, delta_bias, A, B, C, D, z):
    batch, length, channels = u.shape
    tiles = -(-length // forward_tiles(A.shape[-1]).block_t)
    return u.new_empty(u.shape), u.new_empty((batch, tiles, A.shape[-1], channels), dtype=torch.float32)


@scan_backward.register_fake
def _(grad, u, delta, delta_bias, A, B, C, D, z, states):
    return tuple(x.new_empty(x.shape) for x in (u, delta, delta_bias, A, B, C, D, z))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, grad, _):
    return scan_backward(grad, *ctx.saved_tensors)


scan.register_autograd(_gradients, setup_context=_save)
for op in (scan, scan_backward):
    torch.library.register_vmap(op, partial(fold_replicas, op))
