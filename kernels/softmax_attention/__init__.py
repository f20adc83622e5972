"""Causal softmax attention: our own kernels for short sequences, where they are faster, and PyTorch's for the rest.

Under vmap replicas fold into the batch, for PyTorch's kernels too (`operator.py`).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.fused.heads import rotary_heads
from mixerlab.kernels.fused.linear import join_rows
from mixerlab.kernels.softmax_attention.operator import batched_attention, short_attention, short_rotary_attention

SHORT_LENGTH = 128  # positions that one program holds
MAX_HEAD_DIM = 64  # above it, PyTorch's kernels are as fast
ROTARY_HEAD_DIMS = (16, 32, 64)  # whole tiles


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(D)) v` over the keys up to each query; all `[B, T, H, D]`, differentiable."""
    if is_short(q.device, q.dtype, q.shape[1], q.shape[3]):
        return short_attention(q, k, v)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if torch.compiler.is_compiling():  # which knows PyTorch's own gradient, and its rule for vmap
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    return batched_attention(q, k, v, is_causal=True).transpose(1, 2)


def rotary_attention(
    packed: Tensor, num_heads: int, inverse_frequency: Tensor, gains: Sequence[Tensor] = (), eps: float = 0.0
) -> Tensor:
    """`softmax_attention` of the heads of `packed`, q and k rotated by their position (`rotary_heads`).

    One operator does all of it where our kernels for short sequences run.

    Args:
        packed: `[B, T, C]`, q, k and v side by side, and any columns behind them.
        inverse_frequency: float32 `[D / 2]`, as `rotary_heads` takes it.
        gains: `[D]` of q and of k, whose heads are RMS-normed before the rotation, or none.
        eps: added to the mean square of what is normed.

    Returns:
        `[B, T, num_heads, D]`.
    """
    head_dim = 2 * len(inverse_frequency)
    if (
        is_short(packed.device, packed.dtype, packed.shape[1], head_dim)
        and head_dim in ROTARY_HEAD_DIMS
        and packed.shape[2] == 3 * num_heads * head_dim
        and inverse_frequency.dtype == torch.float32
        and not (inverse_frequency.requires_grad or torch.compiler.is_compiling())
    ):
        # One group of parameters; under vmap each replica is another.
        joined = join_rows(*(gain[None] for gain in gains))[None] if gains else None
        return short_rotary_attention(packed, inverse_frequency[None], joined, eps, num_heads)
    of_parts = (*gains, None) if gains else None
    q, k, v = rotary_heads(packed, num_heads, inverse_frequency, (True, True, False), of_parts, eps)
    return softmax_attention(q, k, v)


def is_short(device: torch.device, dtype: torch.dtype, length: int, head_dim: int) -> bool:
    """Whether our kernels run: 16-bit inputs on a GPU, and sequences and heads that fit in one program's registers."""
    return device.type == "cuda" and dtype.itemsize == 2 and length <= SHORT_LENGTH and head_dim <= MAX_HEAD_DIM


def attention_backend(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """What `softmax_attention` runs for sequences of any length, for a record."""
    if is_short(device, dtype, 1, head_dim):
        return f"triton up to {SHORT_LENGTH} positions, torch beyond"
    return "torch's attention" if device.type == "cuda" else "torch"
