"""Parallax attention in PyTorch, on any device and also in float64. The kernels are tested against it."""

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import without_autocast


def visible_keys(seq_len: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys (columns) each query (row) sees: bool `[T, T]`."""
    behind = torch.arange(seq_len, device=device)[:, None] - torch.arange(seq_len, device=device)
    return behind >= 0 if window is None else (behind >= 0) & (behind < window)


def parallax_reference(q: Tensor, rho: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """`parallax_attention`; see there."""
    return attend(q, rho, k, v, ~visible_keys(q.shape[1], window, q.device), scale)


@without_autocast
def attend(q: Tensor, rho: Tensor, k: Tensor, v: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """The masked-softmax form of Parallax attention (Parallax paper, equation `bwd_reweighted`).

    With p the softmax of `scale q·k` over the visible keys, t = ρ·k and t̄ its mean under p:
    `o = Σ p (1 + t̄ - t) v`. Scores are computed in float32, or float64 for float64 inputs.

    Args:
        q, rho: `[B, n, Hq, D]`.
        k, v: `[B, S, Hkv, D]`; query head h reads key head `h // (Hq / Hkv)`.
        hidden: which keys a query does not see, bool `[n, S]` or `[B, 1, n, S]`. One that sees none gets NaN.
        scale: multiplies q·k, and not ρ·k.

    Returns:
        `[B, n, Hq, D]` in q's dtype.
    """
    dtype = q.dtype
    compute = torch.promote_types(dtype, torch.float32)
    q, rho, k, v = (x.transpose(1, 2).to(compute) for x in (q, rho, k, v))
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    logits = (q @ k.mT) * scale
    p = logits.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    t = rho @ k.mT
    mean_t = (p * t).sum(dim=-1, keepdim=True)
    return ((p * (1 + mean_t - t)) @ v).transpose(1, 2).to(dtype)
