"""Mean cross-entropy of each replica, without a float32 copy of the logits and without stored probabilities."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.ignore_index import IGNORE_INDEX


def cross_entropy(logits: Tensor, targets: Tensor, *, backend: str = "auto") -> tuple[Tensor, Tensor]:
    """The mean of `log sum_v exp(logits_v) - logits_target` in each group, in nats, and how many positions it is over.

    Args:
        logits: `[G, ..., V]`.
        targets: int64 `[G, ...]`, from 0 to V - 1 (not checked on a GPU), or -100 for a position without a loss.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, arithmetic in float32; it always adds
            in the same order).

    Returns:
        The mean and the number of positions, both float32 `[G]` (float64 for float64 logits). The mean is
        differentiable. A group without any target has the mean 0 and no gradient.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    if logits.shape[:-1] != targets.shape or not targets.ndim:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and targets {tuple(targets.shape)}: pass logits [G, ..., V]"
            " and targets [G, ...]"
        )
    rows, flat = logits.reshape(len(targets), -1, logits.shape[-1]), targets.reshape(len(targets), -1)
    if resolve_backend(backend, logits.device, why_not_triton(logits)) == "reference":
        wide = rows.to(torch.promote_types(logits.dtype, torch.float32))
        losses = F.cross_entropy(wide.flatten(0, 1), flat.flatten(), ignore_index=IGNORE_INDEX, reduction="none")
        count = (flat != IGNORE_INDEX).sum(dim=1).to(wide.dtype)
        return losses.view(flat.shape).sum(dim=1) / count.clamp(min=1), count
    from mixerlab.kernels.fused.cross_entropy.operator import mean_losses  # here, because Triton is optional

    return mean_losses(rows, flat)[:2]
