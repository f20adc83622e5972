"""Means up to each position and what is left without them, in PyTorch: any device, float64, vmap, autograd."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.autocast import without_autocast
from mixerlab.kernels.common.chunked import decay_between, from_chunks, to_chunks

CHUNK_SIZE = 32  # positions whose weights the kernel holds: those of 64 do not fit in registers
BLOCK = 128  # positions whose weights are one matrix here
TINY = torch.finfo(torch.float32).tiny


def weighted_means(x: Tensor, log_decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """The means of `x` `[B, T, H, W]` with the weights of `kernels.centring.centred`.

    Returns:
        The means, shape and dtype of `x`, and `beta_t` divided by the sum of the weights, that of `beta`.
    """
    length, dtype = x.shape[1], x.dtype
    x, log_decay, beta = (to_chunks(y, min(BLOCK, length)) for y in (x, log_decay, beta))
    decayed = log_decay.cumsum(-1)  # [B, H, N, C]
    weights = decay_between(decayed) * beta[..., None, :]
    total, sums = weights.sum(-1), (weights.to(dtype) @ x).to(beta.dtype)
    if x.shape[2] > 1:
        to_end = (decayed[..., -1:] - decayed).exp() * beta
        # From the end of each chunk to before the next ones: a matrix over chunks, its rows one further down.
        between = F.pad(decay_between(decayed[..., -1].cumsum(-1)), (0, 0, 1, -1))
        earlier = between @ (to_end[..., None, :].to(dtype) @ x).squeeze(-2).to(beta.dtype)
        sums = sums + decayed.exp()[..., None] * earlier[..., None, :]
        total = total + decayed.exp() * (between @ to_end.sum(-1, keepdim=True))
    total = torch.where(total > TINY, total, torch.inf)  # the gradient of 1 / TINY would overflow
    return from_chunks((sums / total[..., None]).to(dtype), length), from_chunks(beta / total, length)


@without_autocast
def centred_reference(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """See `kernels.centring.centred`."""
    pairs = torch.cat((k, v), dim=-1)
    behind, share = weighted_means(pairs, log_decay, beta)
    return _centred(q, pairs, beta, F.pad(behind, (0, 0, 0, 0, 1, -1)), behind, share)


def centred_steps(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, means: Tensor, total: Tensor
) -> tuple[Tensor, ...]:
    """The same from a state on, which becomes the one behind the last token; without a gradient.

    Args:
        means: those of keys and values, side by side `[B, H, 2 D]`; float32 or float64.
        total: the sum of the weights `[B, H]`.
    """
    pairs = torch.cat((k, v), dim=-1)
    before, behind, shares = [], [], []
    for t in range(pairs.shape[1]):
        total *= log_decay[:, t].exp()
        total += beta[:, t]
        before.append(means.clone())
        shares.append(beta[:, t] / total.clamp_min(TINY))
        means += shares[-1][..., None] * (pairs[:, t] - means)
        behind.append(means.clone())
    return _centred(q, pairs, beta, *(torch.stack(rows, dim=1) for rows in (before, behind, shares)))


def _centred(
    q: Tensor, pairs: Tensor, beta: Tensor, before: Tensor, behind: Tensor, share: Tensor
) -> tuple[Tensor, ...]:
    """What `centred` gives, of keys and values side by side and their means before and behind each position."""
    (mean_k, mean_v), (k, v) = behind.chunk(2, dim=-1), (pairs - before).chunk(2, dim=-1)
    return q - mean_k, k, v, beta * (1 - share), mean_v
