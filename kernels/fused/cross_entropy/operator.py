"""The Triton cross-entropy as PyTorch operators."""

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.fused.cross_entropy.triton_kernels import (
    cross_entropy_backward_kernel,
    cross_entropy_forward_kernel,
    group_means_kernel,
)

TILE, MAX_BLOCK_V, WARPS = 2048, 1024, 4
SUM_BLOCK = 1024


@operator("cross_entropy")
def mean_losses(logits, targets) -> tuple[Tensor, Tensor, Tensor]:
    """Mean loss and count of each group of `[groups, N, V]`, and the log-sum-exp of each row; all float32."""
    groups, rows, vocabulary = logits.shape
    logits, tile = unit_stride(logits.flatten(0, 1)), _tile(vocabulary)
    parts = triton.cdiv(rows, tile["ROWS"])
    shapes = (groups,), (groups,), (groups, rows), (groups, parts), (groups, parts)
    mean, count, lse, sums, counts = (logits.new_empty(shape, dtype=torch.float32) for shape in shapes)
    if parts:
        cross_entropy_forward_kernel[parts, groups](
            logits, targets.contiguous(), sums, counts, lse, rows, vocabulary, logits.stride(0), **tile
        )
    group_means_kernel[groups,](sums, counts, mean, count, parts, BLOCK=SUM_BLOCK, num_warps=WARPS)
    return mean, count, lse


@mean_losses.register_fake
def _(logits, targets):
    shapes = targets.shape[:1], targets.shape[:1], targets.shape
    return tuple(logits.new_empty(shape, dtype=torch.float32) for shape in shapes)


@operator("cross_entropy_backward", like="logits")
def mean_losses_backward(grad, logits, targets, count, lse):
    """Gradient of `logits` from that of the means `[groups]`."""
    groups, rows, vocabulary = logits.shape
    grad_logits = logits.new_empty(logits.shape)
    logits, tile = unit_stride(logits.flatten(0, 1)), _tile(vocabulary)
    if rows:
        cross_entropy_backward_kernel[triton.cdiv(rows, tile["ROWS"]), groups](
            *(grad.contiguous(), logits, targets.contiguous(), count, lse, grad_logits),
            *(rows, vocabulary, logits.stride(0)),
            **tile,
        )
    return grad_logits


def _tile(vocabulary: int) -> dict[str, int]:
    block = min(triton.next_power_of_2(vocabulary), MAX_BLOCK_V)
    return {"ROWS": TILE // block, "BLOCK_V": block, "num_warps": WARPS}


register_gradient(mean_losses, lambda ctx, grad, *_: (mean_losses_backward(grad, *ctx.saved_tensors), None))
