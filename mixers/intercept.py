"""The intercept of affine mixers: means of keys and values up to each position, and what is left without them.

The output is the mean of the values plus a linear map of `q - mean(k)` (Parallax, section Connection to Other Attention
Mechanisms).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.chunked import decay_between, from_chunks, to_chunks
from mixerlab.kernels.softmax_attention import softmax_attention
from mixerlab.mixers.cache import State

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
        earlier = between @ (to_end[..., None, :].to(dtype) @ x).squeeze(-2).to(beta.dtype)
        sums = sums + decayed.exp()[..., None] * earlier[..., None, :]
        total = total + decayed.exp() * (between @ to_end.sum(-1, keepdim=True))
    total = total.clamp_min(TINY)
    return from_chunks((sums / total[..., None]).to(dtype), length), from_chunks(beta / total, length)


def centred_regression(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: State | None = None
) -> tuple[Tensor, ...]:
    """What turns a weighted regression of values on keys into one with an intercept.

    With m the means before position t, and n the sums of the weights before and with it, the sums over
    `(k - mean(k)) (k - mean(k))^T` follow the recurrence `H_t = gamma_t H_{t-1} + beta_t (gamma_t n_{t-1} / n_t) (k_t -
    m) (k_t - m)^T`, and those with values alike (Welford 1962). So other keys, values and beta do.

    Args:
        q, k, v: `[B, T, H, D]`.
        log_decay, beta: of the weights, as for `weighted_means`.
        state: with the `means` and the sum `weight` of all before, which become those behind the last token.

    Returns:
        q, k, v, log_decay and beta of the regression, and the mean of the values.
    """
    pairs = torch.cat((k, v), dim=-1)
    if state is None:
        later, share = weighted_means(pairs, log_decay, beta)
        earlier = F.pad(later, (0, 0, 0, 0, 1, -1))
    else:
        before, behind, shares = [], [], []
        for t in range(pairs.shape[1]):
            state["weight"] *= log_decay[:, t].exp()
            state["weight"] += beta[:, t]
            before.append(state["means"].clone())
            shares.append(beta[:, t] / state["weight"].clamp_min(TINY))
            state["means"] += shares[-1][..., None] * (pairs[:, t] - state["means"])
            behind.append(state["means"].clone())
        earlier, later, share = (torch.stack(rows, dim=1) for rows in (before, behind, shares))
    (mean_k, mean_v), (k, v) = later.chunk(2, dim=-1), (pairs - earlier).chunk(2, dim=-1)
    return q - mean_k, k, v, log_decay, beta * (1 - share), mean_v


def uniform_means(x: Tensor, state: State | None = None) -> Tensor:
    """The means of `x` `[B, T, H, D]` over all positions so far, those before `x` from the `means` in a state."""
    if state is None:
        return softmax_attention(torch.zeros_like(x), torch.zeros_like(x), x)
    rows = []
    for row in x.unbind(1):
        state["length"] += 1
        state["means"] += (row - state["means"]) / state["length"]
        rows.append(state["means"].clone())
    return torch.stack(rows, dim=1)
