"""The decays and step sizes of a gated recurrence, from their logits."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.mixers.base import keep_initial_values

DECAY_RATES = (1.0, 16.0)  # exp(A_log) at the start, uniform in this range (Mamba-2)
TIME_STEPS = (1e-3, 1e-1)  # softplus(dt_bias) at the start, log-uniform in this range (Mamba-2)


def initial_decays(heads: int, channels: int) -> tuple[nn.Parameter, nn.Parameter]:
    """`A_log` `[heads]`, which is `log_rate` of `gates`, and its `decay_bias` `[channels]`, as Mamba-2 draws them."""
    rates = nn.Parameter(torch.empty(heads).uniform_(*DECAY_RATES).log())
    low, high = (torch.tensor(step).log().item() for step in TIME_STEPS)
    step = torch.empty(channels).uniform_(low, high).exp()
    biases = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
    for parameter in (rates, biases):
        keep_initial_values(parameter)
    return rates, biases


def gates(
    decay_logit: Tensor,
    beta_logit: Tensor,
    decay_bias: Tensor,
    *,
    log_rate: Tensor | None = None,
    beta_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`log_decay` and `beta = sigmoid(beta_logit + beta_bias)` of each position and head.

    With `z = decay_logit + decay_bias`, `log_decay` is `-exp(log_rate) softplus(z)` if `log_rate` is given
    (Gated DeltaNet and Mamba-2), else `log(sigmoid(z))` (MesaNet).

    Args:
        decay_logit: `[..., H]`; or `[..., C]`, a number for each channel, with a bias and a rate for each.
        beta_logit: `[..., H]`, of the same dtype.
        decay_bias: `[H]` or `[C]`.
        log_rate: the same shape.
        beta_bias: `[H]`; None for zero.

    Returns:
        The shapes of their logits, in float32; float64 for float64 logits.
    """
    wide = torch.promote_types(decay_logit.dtype, torch.float32)
    decay_logit, beta_logit = decay_logit.to(wide) + decay_bias, beta_logit.to(wide)
    if beta_bias is not None:
        beta_logit = beta_logit + beta_bias
    log_decay = F.logsigmoid(decay_logit) if log_rate is None else -log_rate.exp() * F.softplus(decay_logit)
    return log_decay, beta_logit.sigmoid()
