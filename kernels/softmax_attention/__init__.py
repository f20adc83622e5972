"""Causal softmax attention: our own kernels for short sequences, where they are faster, and PyTorch's for the rest.

Under vmap replicas fold into the batch, for PyTorch's kernels too. Its own batching rules fall back to a loop on a CPU,
and on a GPU (PyTorch 2.11) pass a misaligned log-sum-exp to the float32 backward ("LSE is not correctly aligned") and
give wrong results in bfloat16. So `replicas_in_batch` does the same for mixers that call PyTorch's function.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mixerlab.kernels.common.registration import fold_replicas
from mixerlab.kernels.softmax_attention.operator import flash_attention, short_attention

SHORT_LENGTH = 128  # positions that one program holds
MAX_HEAD_DIM = 64  # above it, PyTorch's kernels are as fast


def softmax_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`softmax(q k^T / sqrt(D)) v` over the keys up to each query; all `[B, T, H, D]`, differentiable."""
    if is_short(q.device, q.dtype, q.shape[1], q.shape[3]):
        return short_attention(q, k, v)
    if torch.compiler.is_compiling():
        return flash_attention(q, k, v)[0] if _is_flash(q) else _fused(q, k, v)
    return _Attention.apply(q, k, v)


def is_short(device: torch.device, dtype: torch.dtype, length: int, head_dim: int) -> bool:
    """Whether our kernels run: 16-bit inputs on a GPU, and sequences and heads that fit in one program's registers."""
    return device.type == "cuda" and dtype.itemsize == 2 and length <= SHORT_LENGTH and head_dim <= MAX_HEAD_DIM


def attention_backend(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """What `softmax_attention` runs for sequences of any length, for a record."""
    if is_short(device, dtype, 1, head_dim):
        return f"triton up to {SHORT_LENGTH} positions, torch beyond"
    return "torch's attention" if device.type == "cuda" else "torch"


def _is_flash(q: Tensor) -> bool:
    """Whether PyTorch's flash attention takes these inputs."""
    return q.device.type == "cuda" and q.dtype.itemsize == 2 and q.shape[3] % 8 == 0 and q.shape[3] <= 256


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


class replicas_in_batch(TorchFunctionMode):
    """Meanwhile `F.scaled_dot_product_attention` under vmap is one call, with replicas folded into its batch.

    What `softmax_attention` computes goes there. Under the compiler everything else is left to PyTorch's batching
    rules, and so is dropout, which vmap refuses.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _under_vmap(*args, **kwargs)
        return func(*args, **kwargs)


def _under_vmap(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention`, called under vmap."""
    is_plain = is_causal and attn_mask is None and dropout_p == 0 and scale is None and query.ndim == 4
    if is_plain and query.shape == key.shape == value.shape:
        return softmax_attention(*(x.transpose(1, 2) for x in (query, key, value))).transpose(1, 2)
    if dropout_p > 0 or torch.compiler.is_compiling():
        options = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return F.scaled_dot_product_attention(query, key, value, attn_mask, **options)
    return _AnyAttention.apply(query, key, value, attn_mask, is_causal, scale, enable_gqa)


class _AnyAttention(torch.autograd.Function):
    """Any attention of PyTorch's without dropout, under vmap only: there autograd follows what its rule computes."""

    @staticmethod
    def forward(*_: Any) -> Tensor:
        raise AssertionError("called outside vmap")

    @staticmethod
    def setup_context(*_: Any) -> None:
        raise AssertionError("called outside vmap")

    @staticmethod
    def vmap(info: Any, in_dims: tuple, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *options: Any):
        replicas = info.batch_size
        q, k, v = (
            x.expand(replicas, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((q, k, v), in_dims, strict=False)
        )
        without_heads = q.ndim == 3  # [R, T, D]
        if without_heads:
            q, k, v = (x[:, None] for x in (q, k, v))
        # [R, ..., H, T, D]: to one axis in front of the heads, which PyTorch's fused kernels want.
        lead = q.shape[:-3]
        if mask is not None:
            mask = mask[None] if in_dims[3] is None else mask.movedim(in_dims[3], 0)
            while mask.ndim < q.ndim:  # its axes are the last of the weights'
                mask = mask[:, None]
            mask = mask.expand(*lead, *mask.shape[-3:]).flatten(0, -4)
        q, k, v = (x.flatten(0, -4) for x in (q, k, v))
        is_causal, scale, enable_gqa = options
        o = F.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
        o = o.unflatten(0, lead)
        return o[:, 0] if without_heads else o, 0
