"""Causal softmax attention: our own kernels for short sequences, where they are faster, and PyTorch's for the rest.

Under vmap replicas fold into the batch, for PyTorch's kernels too. Its own batching rules fall back to a loop on a CPU,
and on a GPU pass a misaligned log-sum-exp to the float32 backward (PyTorch 2.11: "LSE is not correctly aligned").
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.registration import fold_replicas
from mixerlab.kernels.softmax_attention.operator import short_attention

SHORT_LENGTH = 128  # positions that one program holds
MAX_HEAD_DIM = 64  # above it, PyTorch's kernels are as fast


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(D)) v` over the keys up to each query; all `[B, T, H, D]`, differentiable."""
    if is_short(q.device, q.dtype, q.shape[1], q.shape[3]):
        return short_attention(q, k, v)
    if torch.compiler.is_compiling():  # which knows PyTorch's own gradient, and its rule for vmap
        return _fused(q, k, v)
    return _Attention.apply(q, k, v)


def is_short(device: torch.device, dtype: torch.dtype, length: int, head_dim: int) -> bool:
    """Whether our kernels run: 16-bit inputs on a GPU, and sequences and heads that fit in one program's registers."""
    return device.type == "cuda" and dtype.itemsize == 2 and length <= SHORT_LENGTH and head_dim <= MAX_HEAD_DIM


def attention_backend(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """What `softmax_attention` runs for sequences of any length, for a record."""
    if is_short(device, dtype, 1, head_dim):
        return f"triton up to {SHORT_LENGTH} positions, torch beyond"
    return "torch's attention" if device.type == "cuda" else "torch"


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class _Attention(torch.autograd.Function):
    """PyTorch's kernels, with replicas folded into the batch under vmap and autograd outside of it."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _fused(q, k, v)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        return _Gradients.apply(grad, *ctx.saved_tensors)

    @staticmethod
    def vmap(info, in_dims, q: Tensor, k: Tensor, v: Tensor):
        return fold_replicas(_fused, info, in_dims, q, k, v)


class _Gradients(torch.autograd.Function):
    """The gradients without vmap, for a single model. It runs the forward again.

    It is a function so that it can refuse a second derivative. `once_differentiable` does not know that the gradients
    depend on the inputs, and would give second derivatives of zero if `grad` is a constant.
    """

    @staticmethod
    def forward(ctx, grad: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs]
            return torch.autograd.grad(_fused(*leaves), leaves, grad)

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("softmax_attention cannot be differentiated twice: PyTorch's kernels give one derivative")
