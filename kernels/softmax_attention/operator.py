"""The kernels for short sequences as PyTorch operators."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register


@torch.library.custom_op("mixerlab::short_attention", mutates_args=())
def short_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax_attention` of a sequence that is short (`is_short`)."""
    from mixerlab.kernels.softmax_attention import triton_short  # here, because Triton is optional

    return triton_short.forward(q, k, v)


@torch.library.custom_op("mixerlab::short_attention_backward", mutates_args=())
def short_attention_backward(d_o: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV, from the inputs and dO only."""
    from mixerlab.kernels.softmax_attention import triton_short

    return triton_short.backward(d_o, q, k, v)


@short_attention.register_fake
def _(q, k, v):
    return q.new_empty(q.shape)


@short_attention_backward.register_fake
def _(d_o, q, k, v):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


register(
    short_attention,
    save=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    gradients=lambda ctx, d_o: short_attention_backward(d_o, *ctx.saved_tensors),
)
register(
    short_attention_backward,
    refusal="softmax_attention of a short sequence cannot be differentiated twice on a GPU",
)
