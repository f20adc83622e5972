"""The delta rule with a decay for each channel of the keys (Kimi Delta Attention), in PyTorch, chunk by chunk.

Within a chunk, let `b_i` be the log decay summed from its first position to i, a vector, `S` the state before it
(`[D, D]`, keys by values) and `u_i = beta_i (v_i - read_i)` what position i writes:

    (I + diag(beta) A) U = diag(beta) (V - (exp(b) K) S),   A_ij = sum_d k_id k_jd exp(b_id - b_jd)  for j < i
    O = scale * ((exp(b) Q) S + P U),                       P_ij = sum_d q_id k_jd exp(b_id - b_jd)  for j <= i
    S <- exp(b_C) S + (exp(b_C - b) K)^T U

`exp(b_i)` and `exp(-b_j)` by themselves may underflow and overflow. So A and P are made of ever larger blocks: between
the two halves of a block, `exp(b_i - b_m)` and `exp(b_m - b_j)` are at most 1, with m the last position of the first
half. The inverse of the unit lower triangular system grows with them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.autocast import without_autocast
from mixerlab.kernels.common.chunked import from_chunks, to_chunks
from mixerlab.kernels.gated_delta_rule.reference import chunk_by_chunk

SMALL = 8  # below it, products of blocks are sums over the channels, not matrix products


@without_autocast
def kimi_delta_rule_reference(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, chunk_size: int
) -> Tensor:
    """See `kernels.kimi_delta_rule.kimi_delta_rule`."""
    length, out_dtype = q.shape[1], v.dtype
    dtype = torch.promote_types(q.dtype, torch.float32)
    chunk_size = 1 << (min(chunk_size, length) - 1).bit_length()  # blocks double: the next power of two
    q = scale * q.to(dtype)
    q, k, v, log_decay, beta = (to_chunks(x.to(dtype), chunk_size) for x in (q, k, v, log_decay, beta))
    b, beta = log_decay.cumsum(-2), beta[..., None]

    inverse, scores = _inverse_and_scores(q, k, b, beta)
    from_start, to_end = b.exp(), (b[..., -1:, :] - b).exp()
    # Keys and beta are zero in the padding, which therefore writes nothing.
    writes, reads = (inverse @ (beta * torch.cat((v, k * from_start), dim=-1))).chunk(2, dim=-1)
    chunk_decay = b[..., -1, :].exp()[..., None]
    outputs = chunk_by_chunk(q * from_start, k * to_end, scores, writes, reads, chunk_decay)
    return from_chunks(outputs, length).to(out_dtype)


def _inverse_and_scores(q: Tensor, k: Tensor, b: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """`(I + diag(beta) A)^{-1}` and P of each chunk, `[..., C, C]`; beta is `[..., C, 1]`, the others `[..., C, D]`."""
    chunk_size = k.shape[-2]
    scores = (q * k).sum(-1)[..., None, None]  # blocks on the diagonal, [..., C / size, size, size]
    inverse = torch.ones_like(scores)
    size = 1
    while size < chunk_size:
        halves = (x.unflatten(-2, (-1, 2, size)).unbind(-3) for x in (q, k, b, beta))
        (_, q_lower), (k_upper, k_lower), (b_upper, b_lower), (_, beta_lower) = halves  # halves, [..., size, D]
        middle = b_upper[..., -1:, :]
        from_middle = (b_lower - middle).exp()
        below = torch.cat((beta_lower * k_lower * from_middle, q_lower * from_middle), dim=-2)
        corner, corner_scores = _product(below, k_upper * (middle - b_upper).exp()).chunk(2, dim=-2)
        above, under = inverse.unflatten(-3, (-1, 2)).unbind(-3)
        inverse = _joined(above, -under @ corner @ above, under)
        scores_above, scores_under = scores.unflatten(-3, (-1, 2)).unbind(-3)
        scores = _joined(scores_above, corner_scores, scores_under)
        size *= 2
    return inverse.squeeze(-3), scores.squeeze(-3)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """`x y^T`, of few rows each without a launch for every pair."""
    return x @ y.mT if y.shape[-2] >= SMALL else (x[..., :, None, :] * y[..., None, :, :]).sum(-1)


def _joined(above: Tensor, corner: Tensor, under: Tensor) -> Tensor:
    """The blocks `[[above, 0], [corner, under]]`."""
    return torch.cat((F.pad(above, (0, above.shape[-1])), torch.cat((corner, under), dim=-1)), dim=-2)
