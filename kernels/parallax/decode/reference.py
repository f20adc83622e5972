"""Parallax attention over a cache in PyTorch, on any device and also in float64."""

import torch
from torch import Tensor


def decode_reference(
    q: Tensor,
    rho: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
    scale: float,
    window: int | None,
) -> Tensor:
    """`parallax_decode`; see there. Scores are computed in float32, or float64 for float64 inputs."""
    batch, tokens, heads, _ = q.shape
    cache_len = k_cache.shape[1]
    compute = torch.promote_types(q.dtype, torch.float32)
    keys = torch.arange(cache_len, device=q.device)
    if lengths is None:
        lengths = torch.full((batch,), cache_len, dtype=torch.int32, device=q.device)
    last = lengths[:, None] - tokens + torch.arange(tokens, device=q.device)  # [B, n], the position of each token
    seen = (keys <= last[..., None]) & (last[..., None] >= 0)  # [B, n, S]
    if window is not None:
        seen &= keys > last[..., None] - window
    filled = (keys < lengths[:, None])[..., None, None]
    k, v = (x.to(compute).masked_fill(~filled, 0) for x in (k_cache, v_cache))
    k, v = (x.repeat_interleave(heads // x.shape[2], dim=2) for x in (k, v))
    seen = seen[:, None]  # [B, 1, n, S]
    logits = torch.einsum("bnhd,bshd->bhns", q.to(compute), k) * scale
    p = logits.masked_fill(~seen, -torch.inf).softmax(dim=-1).masked_fill(~seen, 0)
    t = torch.einsum("bnhd,bshd->bhns", rho.to(compute), k)
    mean_t = (p * t).sum(dim=-1, keepdim=True)
    return torch.einsum("bhns,bshd->bnhd", p * (1 + mean_t - t), v).to(q.dtype)
