"""Embedding look-up. Its gradient is a product with one-hot rows."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.common.shapes import check_shapes


def embedding(tokens: Tensor, weight: Tensor, *, backend: str = "auto") -> Tensor:
    """The rows `tokens` of `weight`.

    Args:
        tokens: int64 `[...]`, from 0 to V - 1 (not checked on a GPU).
        weight: `[V, D]`.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16). The kernel adds the gradients of a
            row in float32, always in the same order. For N tokens it does N x V x D multiplications.

    Returns:
        `[..., D]` in the dtype of `weight`.

    Raises:
        ValueError: a weight that is not a matrix, or a backend that cannot run here.
    """
    check_shapes(("weight", weight, ("V", "D")))
    if resolve_backend(backend, weight.device, why_not_triton(weight)) == "reference":
        # PyTorch adds up the gradients of a row in the dtype of the table. In bfloat16 a sum stops growing after about
        # 256 equal terms.
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        return F.embedding(tokens, wide).to(weight.dtype)
    from mixerlab.kernels.fused.embedding.operator import look_up  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    return look_up(tokens.reshape(1, -1), weight[None]).view(*tokens.shape, weight.shape[1])
