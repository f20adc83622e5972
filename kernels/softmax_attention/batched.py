"""PyTorch's attention, with replicas in its batch under vmap.

PyTorch's own batching rules fall back to a loop on a CPU. On a GPU (PyTorch 2.11) they pass a misaligned log-sum-exp to
the float32 backward ("LSE is not correctly aligned"), and give wrong results in bfloat16.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

pytorchs_attention = F.scaled_dot_product_attention  # itself, also while another stands in its place


def batched_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` without dropout; `[..., T, D]`, differentiable once outside vmap."""
    return _Attention.apply(q, k, v, mask, is_causal, scale, enable_gqa)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Tensor:
    return pytorchs_attention(q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


class _Attention(torch.autograd.Function):
    """PyTorch's kernels, with replicas folded into the batch under vmap and autograd outside of it."""

    forward = staticmethod(_attention)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.options = inputs[4:]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_Gradients.apply(grad, *ctx.saved_tensors, *ctx.options), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[Tensor, int]:
        tensors, options = inputs[:4], inputs[4:]
        # [R, ..., H, T, D], of which some may lack axes: those that are given stand last.
        in_front = [
            x if x is None else x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(tensors, in_dims, strict=False)
        ]
        axes = max(x.ndim for x in in_front if x is not None)
        full = [x if x is None else x[(slice(None), *(None,) * (max(axes, 4) - x.ndim))] for x in in_front]
        # To one axis in front of the heads, which PyTorch's fused kernels want.
        lead = torch.broadcast_shapes(*(x.shape[:-3] for x in full if x is not None))
        folded: list[Any] = [x if x is None else x.expand(*lead, *x.shape[-3:]).flatten(0, -4) for x in full]
        # Inside another vmap the replicas of that one are folded in as well.
        attention = _Attention.apply if torch._C._are_functorch_transforms_active() else _attention
        o = attention(*folded, *options).unflatten(0, lead)
        return o.squeeze(1) if axes == 3 else o, 0


class _Gradients(torch.autograd.Function):
    """The gradients without vmap, for a single model. It runs the forward again.

    It is a function so that it can refuse a second derivative. `once_differentiable` does not know that the gradients
    depend on the inputs, and would give second derivatives of zero if `grad` is a constant.
    """

    @staticmethod
    def forward(ctx, grad: Tensor, *inputs: Any) -> tuple[Tensor | None, ...]:
        tensors, options = inputs[:4], inputs[4:]
        with torch.enable_grad():
            leaves: list[Any] = [
                x if x is None or not x.is_floating_point() else x.detach().requires_grad_() for x in tensors
            ]
            wanted = [x for x in leaves if x is not None and x.requires_grad]
            found = iter(torch.autograd.grad(_attention(*leaves, *options), wanted, grad))
        return tuple(next(found) if x is not None and x.requires_grad else None for x in leaves)

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("softmax_attention cannot be differentiated twice: PyTorch's kernels give one derivative")
