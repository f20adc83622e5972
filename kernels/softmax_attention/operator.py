"""Causal attention as PyTorch operators: our kernels for short sequences, and PyTorch's flash attention."""

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


@torch.library.custom_op("mixerlab::flash_attention", mutates_args=())
def flash_attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`softmax_attention` by PyTorch's flash attention, for 16-bit inputs on a GPU; also the log-sum-exps `[B, H, T]`.

    An operator of ours, because the compiler takes PyTorch's apart under vmap.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
    return o.transpose(1, 2).contiguous(), lse


@torch.library.custom_op("mixerlab::flash_attention_backward", mutates_args=())
def flash_attention_backward(
    d_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV."""
    length = q.shape[1]
    no_dropout = torch.empty((), dtype=torch.uint64, device=q.device)  # seed and offset: not read
    d_o, q, k, v, o = (x.transpose(1, 2) for x in (d_o, q, k, v, o))
    grads = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        d_o, q, k, v, o, lse, None, None, length, length, 0.0, True, no_dropout, no_dropout
    )
    return tuple(x.transpose(1, 2).contiguous() for x in grads)


@flash_attention.register_fake
def _(q, k, v):
    return q.new_empty(q.shape), q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)


@flash_attention_backward.register_fake
def _(d_o, q, k, v, o, lse):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


register(
    flash_attention,
    save=lambda ctx, inputs, output: ctx.save_for_backward(*inputs, *output),
    gradients=lambda ctx, d_o, d_lse: flash_attention_backward(d_o, *ctx.saved_tensors),
)
register(
    flash_attention_backward,
    refusal="softmax_attention cannot be differentiated twice on a GPU",
)
