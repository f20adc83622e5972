"""The Triton embedding as PyTorch operators."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register

# The kernel multiplies by one-hot rows, which takes time in proportion to the vocabulary. For larger ones PyTorch sorts
# the tokens.
MAX_VOCABULARY = 256


@torch.library.custom_op("mixerlab::embedding", mutates_args=())
def look_up(tokens: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """`embedding` of `tokens` `[groups, N]` in `weight` `[groups, V, D]`: `[groups, N, D]`."""
    from mixerlab.kernels.fused.embedding import triton_kernels  # here, because Triton is optional

    return triton_kernels.forward(tokens, weight, out_dtype)


@torch.library.custom_op("mixerlab::embedding_backward", mutates_args=())
def look_up_backward(grad: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    """Gradient of `weight`, of which only the shape and dtype are used."""
    from mixerlab.kernels.fused.embedding import triton_kernels

    groups, vocabulary = weight.shape[:2]
    if vocabulary <= MAX_VOCABULARY:
        return triton_kernels.backward(grad, tokens, vocabulary, weight.dtype)
    rows = tokens + vocabulary * torch.arange(groups, device=tokens.device)[:, None]
    wide = grad.to(torch.promote_types(grad.dtype, weight.dtype)).flatten(0, 1)
    sums = torch.ops.aten.embedding_dense_backward(wide, rows.flatten(), groups * vocabulary, -1, False)
    return sums.view(weight.shape).to(weight.dtype)


@look_up.register_fake
def _(tokens, weight, out_dtype):
    return weight.new_empty((*tokens.shape, weight.shape[2]), dtype=out_dtype)


@look_up_backward.register_fake
def _(grad, tokens, weight):
    return weight.new_empty(weight.shape)


def _save(ctx, inputs, output):
    tokens, weight, _ = inputs
    ctx.save_for_backward(tokens, weight)


def _gradients(ctx, grad):
    return None, look_up_backward(grad, *ctx.saved_tensors), None


register(look_up, save=_save, gradients=_gradients)
register(look_up_backward)
