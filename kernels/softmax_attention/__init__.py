"""Causal softmax attention: our own kernels for short sequences, where they are faster, and PyTorch's for the rest.

Under vmap replicas fold into the batch, for PyTorch's kernels too (`batched.py`).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.softmax_attention.batched import batched_attention

SHORT_LENGTH = 128  # positions that one program holds
MAX_HEAD_DIM = 64  # above it, PyTorch's kernels are as fast


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(D)) v` over the keys up to each query; all `[B, T, H, D]`, differentiable.

    Raises:
        ValueError: shapes that do not fit.
    """
    check_shapes(("q", q, ("B", "T", "H", "D")))
    check_shapes(("k", k, q.shape), ("v", v, q.shape), fitting=f"q {tuple(q.shape)}")
    if is_short(q.device, q.dtype, q.shape[1], q.shape[3]):
        from mixerlab.kernels.softmax_attention.operator import short_attention  # here, because Triton is optional

        return short_attention(q, k, v)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if torch.compiler.is_compiling():  # which knows PyTorch's own gradient, and its rule for vmap
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    return batched_attention(q, k, v, is_causal=True).transpose(1, 2)


def is_short(device: torch.device, dtype: torch.dtype, length: int, head_dim: int) -> bool:
    """Whether our kernels run: 16-bit inputs on a GPU, and sequences and heads that fit in one program's registers."""
    return device.type == "cuda" and dtype.itemsize == 2 and length <= SHORT_LENGTH and head_dim <= MAX_HEAD_DIM


def attention_backend(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """What `softmax_attention` runs for sequences of any length, for a record."""
    if is_short(device, dtype, 1, head_dim):
        return f"triton up to {SHORT_LENGTH} positions, torch beyond"
    return "torch's attention" if device.type == "cuda" else "torch"
