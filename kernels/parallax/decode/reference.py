"""Parallax attention over a cache in PyTorch, on any device and also in float64."""

import torch
from torch import Tensor

from mixerlab.kernels.parallax.reference import attend


def decode_reference(
    q: Tensor,
    rho: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
    scale: float,
    window: int | None,
) -> Tensor:
    """`parallax_decode`; see there."""
    tokens, cache_len = q.shape[1], k_cache.shape[1]
    keys = torch.arange(cache_len, device=q.device)
    if lengths is None:
        lengths = keys.new_full(q.shape[:1], cache_len)
    at = lengths[:, None, None] - tokens + torch.arange(tokens, device=q.device)[:, None]  # [B, n, 1]
    seen = keys <= at  # [B, n, S]: by each token, at its position
    if window is not None:
        seen &= keys > at - window
    behind = (keys >= lengths[:, None])[..., None, None]
    k, v = (x.masked_fill(behind, 0) for x in (k_cache, v_cache))
    return attend(q, rho, k, v, ~seen[:, None], scale).masked_fill(~seen.any(dim=-1)[..., None, None], 0)
