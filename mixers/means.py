"""Weighted means of keys and values up to each position, the intercept of affine mixers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.chunked import decay_between, from_chunks, to_chunks

CHUNK_SIZE = 128  # positions whose weights are one matrix
TINY = torch.finfo(torch.float32).tiny


def weighted_means(x: Tensor, log_decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The means of `x` with weights `beta_s exp(log_decay_{s+1} + ... + log_decay_t)`, s up to t, and beta_t's share.

    Args:
        x: `[B, T, H, W]`.
        log_decay: at most 0, `[B, T, H]`, at least float32.
        beta: at least 0, the same shape and dtype. Where all weights are 0, the mean is 0.

    Returns:
        The means, shape and dtype of `x`, and `beta_t` divided by the sum of the weights, that of `beta`.
    """
    length, dtype = x.shape[1], x.dtype
    x, log_decay, beta = (to_chunks(y, min(CHUNK_SIZE, length)) for y in (x, log_decay, beta))
    decayed = log_decay.cumsum(-1)  # [B, H, N, C]
    weights = decay_between(decayed) * beta[..., None, :]
    total, sums = weights.sum(-1), (weights.to(dtype) @ x).to(beta.dtype)
    if x.shape[2] > 1:
        to_end = (decayed[..., -1:] - decayed).exp() * beta
        # From the end of each chunk to before the next ones: a matrix over chunks, its rows one further down.
        between = F.pad(decay_between(decayed[..., -1].cumsum(-1)), (0, 0, 1, -1))
        before = between @ (to_end[..., None, :].to(dtype) @ x).squeeze(-2).to(beta.dtype)
        sums = sums + decayed.exp()[..., None] * before[..., None, :]
        total = total + decayed.exp() * (between @ to_end.sum(-1, keepdim=True))
    total = total.clamp_min(TINY)
    return from_chunks((sums / total[..., None]).to(dtype), length), from_chunks(beta / total, length)


def before(means: Tensor) -> Tensor:
    """`[B, T, ...]`, each row one position later, zeros at the first."""
    return F.pad(means, (0, 0) * (means.ndim - 2) + (1, -1))
