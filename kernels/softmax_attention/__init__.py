"""Causal softmax attention through PyTorch's fused kernels, with replicas folded into the batch under vmap.

PyTorch's own batching rules for these kernels fall back to a loop on a CPU, and on a GPU hand the float32 backward
a misaligned log-sum-exp (PyTorch 2.11: "LSE is not correctly aligned").
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import fold_replicas


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(D)) v` over the keys up to each query; all `[B, T, H, D]`, differentiable."""
    return _Attention.apply(q, k, v)


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class _Attention(torch.autograd.Function):
    """Under vmap, one call on folded tensors, which ordinary autograd outside the vmap differentiates."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _fused(q, k, v)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        # Reached without vmap only, by a single model: it runs the forward again.
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            return torch.autograd.grad(_fused(*inputs), inputs, grad)

    @staticmethod
    def vmap(info, in_dims, q: Tensor, k: Tensor, v: Tensor):
        return fold_replicas(_fused, info, in_dims, q, k, v)
