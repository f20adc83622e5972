"""Makes `F.scaled_dot_product_attention` of anybody's mixer right and fast under vmap."""

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mixerlab.kernels.softmax_attention import softmax_attention
from mixerlab.kernels.softmax_attention.batched import batched_attention, pytorchs_attention


class replicas_in_batch(TorchFunctionMode):
    """While active, `F.scaled_dot_product_attention` under vmap is one call with replicas folded into its batch.

    So is that of `nn.MultiheadAttention`. Plain causal attention is passed to `softmax_attention`. Dropout is left to
    vmap, which refuses it. A compiled mixer does not see the mode: PyTorch's batching rules take its attention apart,
    and their results are right there.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is pytorchs_attention:
            return _attention(*args, **kwargs)
        if func is F.multi_head_attention_forward:  # inside it the mode is not active
            with mock.patch.object(F, "scaled_dot_product_attention", _attention):
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention`."""
    if dropout_p > 0 or torch.compiler.is_compiling():
        return pytorchs_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    alike = query.shape == key.shape == value.shape and query.dtype == key.dtype == value.dtype
    if is_causal and attn_mask is None and scale is None and query.ndim == 4 and alike:
        return softmax_attention(*(x.transpose(1, 2) for x in (query, key, value))).transpose(1, 2)
    return batched_attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
