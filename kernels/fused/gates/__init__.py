"""The decays and step sizes of a gated recurrence, from their logits: one launch each way."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.common.shapes import check_shapes


def gates(
    decay_logit: Tensor,
    beta_logit: Tensor,
    decay_bias: Tensor,
    *,
    log_rate: Tensor | None = None,
    beta_bias: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """`log_decay` and `beta = sigmoid(beta_logit + beta_bias)` of each position and head.

    With `z = decay_logit + decay_bias`, `log_decay` is `-exp(log_rate) softplus(z)` if `log_rate` is given
    (Gated DeltaNet and Mamba-2), else `log(sigmoid(z))` (MesaNet).

    Args:
        decay_logit: `[B, T, H]`; or `[B, T, C]`, a number for each channel, with a bias and a rate for each.
        beta_logit: `[B, T, H]`, of the same dtype.
        decay_bias: `[H]` or `[C]`.
        log_rate: the same shape.
        beta_bias: `[H]`; None for zero.
        backend: `auto`, `reference` (PyTorch) or `triton`. The kernel takes float32 and bfloat16 logits, any strides
            whose last is one.

    Returns:
        The shapes of their logits, in float32; float64 for float64 logits.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    of_decay, of_beta = decay_logit.shape[-1:], beta_logit.shape[-1:]
    given = ("decay_bias", decay_bias, of_decay), ("log_rate", log_rate, of_decay), ("beta_bias", beta_bias, of_beta)
    check_shapes(  # the kernels trust these shapes: they would write behind the betas of fewer positions
        ("beta_logit", beta_logit, (*decay_logit.shape[:-1], "H")),
        *((name, x, shape) for name, x, shape in given if x is not None),
        fitting=f"decay_logit {tuple(decay_logit.shape)} and beta_logit {tuple(beta_logit.shape)}",
    )
    parameters = [x for x in (decay_bias, log_rate, beta_bias) if x is not None]
    why = why_not_triton(decay_logit, beta_logit, *parameters)
    if resolve_backend(backend, decay_logit.device, why) == "triton":
        from mixerlab.kernels.fused.gates.operator import gates as gates_of_groups  # here, because Triton is optional

        # One group of parameters; under vmap each replica is another.
        logits = (x.reshape(1, -1, x.shape[-1]) for x in (decay_logit, beta_logit))
        of_group = (x if x is None else x[None] for x in (decay_bias, log_rate, beta_bias))
        log_decay, beta = gates_of_groups(*logits, *of_group)
        return log_decay.view(decay_logit.shape), beta.view(beta_logit.shape)
    wide = torch.promote_types(decay_logit.dtype, torch.float32)
    decay_logit, beta_logit = decay_logit.to(wide) + decay_bias, beta_logit.to(wide)
    if beta_bias is not None:
        beta_logit = beta_logit + beta_bias
    log_decay = F.logsigmoid(decay_logit) if log_rate is None else -log_rate.exp() * F.softplus(decay_logit)
    return log_decay, beta_logit.sigmoid()
