"""The intercept of affine mixers: means of keys and values up to each position, and what is left without them.

The output is the mean of the values plus a linear map of `q - mean(k)` (Parallax, section Connection to Other Attention
Mechanisms).
"""

import torch
from torch import Tensor

from mixerlab.kernels.softmax_attention import softmax_attention
from mixerlab.mixers.cache import State

TINY = torch.finfo(torch.float32).tiny


def centred_steps(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: State) -> tuple[Tensor, ...]:
    """`kernels.centring.centred`, token by token from a state on.

    It has the `means` of keys and values and the sum `weight` of all before, which become those behind the last token.
    """
    pairs = torch.cat((k, v), dim=-1)
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
    return q - mean_k, k, v, beta * (1 - share), mean_v


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
