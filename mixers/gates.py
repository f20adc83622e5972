"""The decays and step sizes of a gated recurrence, from their logits."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
        decay_logit: `[..., H]`.
        beta_logit: the same shape and dtype.
        decay_bias: `[H]`.
        log_rate: `[H]`.
        beta_bias: `[H]`; None for zero.

    Returns:
        Both `[..., H]`, in float32; float64 for float64 logits.
    """
    wide = torch.promote_types(decay_logit.dtype, torch.float32)
    decay_logit, beta_logit = decay_logit.to(wide) + decay_bias, beta_logit.to(wide)
    if beta_bias is not None:
        beta_logit = beta_logit + beta_bias
    log_decay = F.logsigmoid(decay_logit) if log_rate is None else -log_rate.exp() * F.softplus(decay_logit)
    return log_decay, beta_logit.sigmoid()
