"""Embedding look-up, now or later. Its gradient is a product with one-hot rows."""

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton


@dataclass(frozen=True, eq=False)  # tensors cannot be compared to one bool
class Embedded:
    """`embedding(tokens, table)` before it is looked up.

    A layer that treats all positions alike can be applied to the table instead: once for each token of the vocabulary,
    not once for each position. Its backward too runs over the table, with gradients that `look_up` has added up by
    token. So a row of the table that is not finite gives the layer gradients that are not finite, even if its token
    does not occur.

    Args:
        tokens: int64 `[...]`, from 0 to V - 1.
        table: `[V, D]`.
    """

    tokens: Tensor
    table: Tensor

    @property
    def shape(self) -> torch.Size:
        """`[..., D]`."""
        return self.tokens.shape + self.table.shape[1:]

    def __getitem__(self, places) -> Self:
        """Some of the positions, by indices of the tokens."""
        return replace(self, tokens=self.tokens[places])

    def look_up(self, *, backend: str = "auto") -> Tensor:
        """`[..., D]`."""
        return embedding(self.tokens, self.table, backend=backend)


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
    if weight.ndim != 2:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: pass [V, D]")
    if resolve_backend(backend, weight.device, why_not_triton(weight)) == "reference":
        # PyTorch adds up the gradients of a row in the dtype of the table. In bfloat16 a sum stops growing after about
        # 256 equal terms.
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        return F.embedding(tokens, wide).to(weight.dtype)
    from mixerlab.kernels.fused.embedding.operator import look_up  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    return look_up(tokens.reshape(1, -1), weight[None]).view(*tokens.shape, weight.shape[1])
