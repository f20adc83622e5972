"""The gated delta rule in PyTorch, chunk by chunk or token by token: any device, float32 or float64, vmap, autograd.

Within a chunk, let `b_i` be the log decay summed from its first position to i, `S` the state before it (`[D, D]`, keys
by values) and `u_i = beta_i (v_i - read_i)` what position i writes. Each read depends on the state and on the earlier
writes, which gives a unit lower triangular system:

    (I + diag(beta) A) U = diag(beta) (V - exp(b) K S),   A_ij = exp(b_i - b_j) k_i.k_j  for j < i
    O = scale * (exp(b) Q S + P U),                       P_ij = exp(b_i - b_j) q_i.k_j  for j <= i
    S <- exp(b_C) S + (exp(b_C - b) K)^T U

Its right-hand side is linear in S. So the system is solved for all chunks at once, `U = writes - reads S`, and only
products go from chunk to chunk.
"""

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import without_autocast
from mixerlab.kernels.common.chunked import decay_between, from_chunks, to_chunks


@without_autocast
def gated_delta_rule_reference(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, chunk_size: int
) -> Tensor:
    """See `kernels.gated_delta_rule.gated_delta_rule`."""
    length, shape, out_dtype = q.shape[1], v.shape, v.dtype
    v = v.flatten(2).unflatten(2, (q.shape[2], -1))  # a row of S reads only its own value: one solve for all of a key
    dtype = torch.promote_types(q.dtype, torch.float32)
    chunk_size = min(chunk_size, length)
    q, k, v, log_decay, beta = (to_chunks(x.to(dtype), chunk_size) for x in (q, k, v, log_decay, beta))

    cumulative = log_decay.cumsum(-1)
    decay = decay_between(cumulative)
    beta, from_start = beta[..., None], cumulative.exp()[..., None]
    to_end = (cumulative[..., -1:] - cumulative).exp()[..., None]

    # Keys and beta are zero in the padding, which therefore writes nothing and needs no mask.
    system = beta * ((k @ k.mT) * decay).tril(-1)
    right = torch.cat((beta * v, beta * from_start * k), dim=-1)
    # With `unitriangular` the diagonal counts as 1, whatever its values.
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    writes, reads = solved.tensor_split((v.shape[-1],), dim=-1)

    scores, chunk_decay = (q @ k.mT) * decay, cumulative[..., -1].exp()[..., None, None]
    outputs = chunk_by_chunk(q * from_start, k * to_end, scores, writes, reads, chunk_decay)
    return (scale * from_chunks(outputs, length)).reshape(shape).to(out_dtype)


def chunk_by_chunk(q: Tensor, k: Tensor, scores: Tensor, writes: Tensor, reads: Tensor, chunk_decay: Tensor) -> Tensor:
    """`O / scale`, `[B, H, N, C, W]`, from what does not depend on S.

    Args:
        q, k: `exp(b) Q` and `exp(b_C - b) K`, `[B, H, N, C, D]`.
        scores: P, `[B, H, N, C, C]`.
        writes: `[B, H, N, C, W]`.
        reads: `[B, H, N, C, D]`.
        chunk_decay: `exp(b_C)`, of all rows of S or of each, `[B, H, N, 1 or D, 1]`.
    """
    state = torch.zeros_like(k[:, :, 0].mT @ writes[:, :, 0])
    outputs = []
    for n in range(q.shape[2]):
        u = writes[:, :, n] - reads[:, :, n] @ state
        outputs.append(q[:, :, n] @ state + scores[:, :, n] @ u)
        state = chunk_decay[:, :, n] * state + k[:, :, n].mT @ u
    return torch.stack(outputs, dim=2)


@without_autocast
def gated_delta_rule_steps(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, memory: Tensor, scale: float | None = None
) -> Tensor:
    """The same from a state on, which becomes the one behind the last token; without a gradient.

    Args:
        q, k: `[B, T, H, D]`.
        v: `[B, T, H, W]`, of any width.
        log_decay: `[B, T, H]`; or for each channel of the keys, `[B, T, H, D]`.
        beta: `[B, T, H]`.
        memory: S, keys by values `[B, H, D, W]`; float32 or float64, as the sums are.
        scale: multiplies the output; `1 / sqrt(D)` by default.

    Returns:
        `[B, T, H, W]` in the dtype of v.
    """
    out_dtype, scale = v.dtype, q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.to(memory.dtype).unsqueeze(-2) for x in (q, k, v))  # rows
    log_decay = log_decay[..., None] if log_decay.ndim == 3 else log_decay
    decay, beta = log_decay.exp()[..., None], beta[..., None, None]
    outputs = []
    for t in range(q.shape[1]):
        memory *= decay[:, t]
        write = beta[:, t] * (v[:, t] - k[:, t] @ memory)
        memory += k[:, t].mT * write
        outputs.append(scale * q[:, t] @ memory)
    return torch.stack(outputs, dim=1).squeeze(-2).to(out_dtype)
