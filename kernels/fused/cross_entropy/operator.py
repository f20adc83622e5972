"""The Triton cross-entropy as PyTorch operators."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register


@torch.library.custom_op("mixerlab::cross_entropy", mutates_args=())
def mean_losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean loss and count of each group of `[groups, N, V]`, and the log-sum-exp of each row; all float32."""
    from mixerlab.kernels.fused.cross_entropy import triton_kernels  # here, because Triton is optional

    return triton_kernels.forward(logits, targets)


@torch.library.custom_op("mixerlab::cross_entropy_backward", mutates_args=())
def mean_losses_backward(grad: Tensor, logits: Tensor, targets: Tensor, count: Tensor, lse: Tensor) -> Tensor:
    """Gradient of `logits` from that of the means `[groups]`."""
    from mixerlab.kernels.fused.cross_entropy import triton_kernels

    return triton_kernels.backward(grad, logits, targets, count, lse)


@mean_losses.register_fake
def _(logits, targets):
    shapes = targets.shape[:1], targets.shape[:1], targets.shape
    return tuple(logits.new_empty(shape, dtype=torch.float32) for shape in shapes)


@mean_losses_backward.register_fake
def _(grad, logits, targets, count, lse):
    return logits.new_empty(logits.shape)


def _gradients(ctx, grad, *_):
    return mean_losses_backward(grad, *ctx.saved_tensors), None


register(mean_losses, gradients=_gradients)
register(mean_losses_backward)
