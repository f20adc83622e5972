"""The Triton gates as PyTorch operators."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register


@torch.library.custom_op("mixerlab::gates", mutates_args=())
def gates(
    decay_logit: Tensor, beta_logit: Tensor, decay_bias: Tensor, log_rate: Tensor | None, beta_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`gates` of logits `[groups, N, C]` and `[groups, N, H]`, and parameters: log decay and beta in float32."""
    from mixerlab.kernels.fused.gates import triton_kernels  # here, because Triton is optional

    return triton_kernels.forward(decay_logit, beta_logit, decay_bias, log_rate, beta_bias)


@torch.library.custom_op("mixerlab::gates_backward", mutates_args=())
def gates_backward(
    d_log_decay: Tensor,
    d_beta: Tensor,
    decay_logit: Tensor,
    beta_logit: Tensor,
    decay_bias: Tensor,
    log_rate: Tensor | None,
    beta_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the logits, and in float32 those of decay bias, log rate and beta bias `[groups, 2 C + H]`."""
    from mixerlab.kernels.fused.gates import triton_kernels

    return triton_kernels.backward(d_log_decay, d_beta, decay_logit, beta_logit, decay_bias, log_rate, beta_bias)


@gates.register_fake
def _(decay_logit, beta_logit, decay_bias, log_rate, beta_bias):
    log_decay, beta = (x.new_empty(x.shape, dtype=torch.float32) for x in (decay_logit, beta_logit))
    return log_decay, beta


@gates_backward.register_fake
def _(d_log_decay, d_beta, decay_logit, beta_logit, decay_bias, log_rate, beta_bias):
    groups, channels = decay_bias.shape
    of_decay, of_beta = (x.new_empty(x.shape) for x in (decay_logit, beta_logit))
    sums = decay_bias.new_empty(groups, 2 * channels + beta_logit.shape[2], dtype=torch.float32)
    return of_decay, of_beta, sums


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradients(ctx, d_log_decay, d_beta):
    _, beta_logit, *parameters = ctx.saved_tensors
    of_decay, of_beta, sums = gates_backward(d_log_decay, d_beta, *ctx.saved_tensors)
    channels, heads = parameters[0].shape[-1], beta_logit.shape[-1]
    parts = zip(parameters, sums.split((channels, channels, heads), dim=-1), strict=True)
    return of_decay, of_beta, *(None if x is None else y.to(x.dtype) for x, y in parts)


register(gates, save=_save, gradients=_gradients)
register(gates_backward)
