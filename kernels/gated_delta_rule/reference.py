"""The gated delta rule in PyTorch, chunk by chunk: any device, float32 or float64, vmap, autograd.

Within a chunk, write `b_i` for the log decay summed from its first position to i, `S` for the state before it
(`[D, D]`, keys by values) and `u_i = beta_i (v_i - read_i)` for what position i writes. Each read sees the
state and the earlier writes, which gives a unit lower triangular system:

    (I + diag(beta) A) U = diag(beta) (V - exp(b) K S),   A_ij = exp(b_i - b_j) k_i.k_j  for j < i
    O = scale * (exp(b) Q S + P U),                       P_ij = exp(b_i - b_j) q_i.k_j  for j <= i
    S <- exp(b_C) S + (exp(b_C - b) K)^T U

The system is solved for all chunks at once; only the last three lines walk from chunk to chunk.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def to_chunks(x: Tensor, chunk_size: int) -> Tensor:
    """`[B, T, H, ...]` to `[B, H, N, chunk_size, ...]`, padded with zeros behind T."""
    padding = -x.shape[1] % chunk_size
    x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, padding))
    return x.unflatten(1, (-1, chunk_size)).movedim(3, 1)


def from_chunks(x: Tensor, length: int) -> Tensor:
    """The inverse of `to_chunks`: `[B, H, N, C, ...]` to `[B, length, H, ...]`."""
    return x.movedim(1, 3).flatten(1, 2)[:, :length]


def decay_between(cumulative: Tensor) -> Tensor:
    """`exp(b_i - b_j)` for `j <= i` and 0 elsewhere: `[..., C]` to `[..., C, C]`."""
    difference = cumulative[..., :, None] - cumulative[..., None, :]
    future = torch.ones_like(difference, dtype=torch.bool).triu(1)
    # Masked before the exponential: the upper half would overflow and give NaN gradients.
    return difference.masked_fill(future, -torch.inf).exp()


def gated_delta_rule_reference(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, chunk_size: int
) -> Tensor:
    """See `kernels.gated_delta_rule.gated_delta_rule`."""
    length, head_dim, out_dtype = q.shape[1], q.shape[3], v.dtype
    dtype = torch.promote_types(q.dtype, torch.float32)
    chunk_size = min(chunk_size, length)
    q, k, v, log_decay, beta = (to_chunks(x.to(dtype), chunk_size) for x in (q, k, v, log_decay, beta))

    cumulative = log_decay.cumsum(-1)
    decay = decay_between(cumulative)
    beta, from_start = beta[..., None], cumulative.exp()[..., None]
    to_end = (cumulative[..., -1:] - cumulative).exp()[..., None]

    # A zero key or beta at a padded position writes nothing, so padding needs no mask.
    system = beta * ((k @ k.mT) * decay).tril(-1)
    right = torch.cat((beta * v, beta * from_start * k), dim=-1)
    # `unitriangular` takes the diagonal as 1, whatever stands there.
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    writes, reads = solved.split(head_dim, dim=-1)

    attention = (q @ k.mT) * decay
    q, k = q * from_start, k * to_end
    chunk_decay = cumulative[..., -1].exp()[..., None, None]
    state = torch.zeros_like(k[:, :, 0].mT @ v[:, :, 0])
    outputs = []
    for n in range(q.shape[2]):
        u = writes[:, :, n] - reads[:, :, n] @ state
        outputs.append(q[:, :, n] @ state + attention[:, :, n] @ u)
        state = chunk_decay[:, :, n] * state + k[:, :, n].mT @ u
    return (scale * from_chunks(torch.stack(outputs, dim=2), length)).to(out_dtype)
