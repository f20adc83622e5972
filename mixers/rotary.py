"""Rotary embedding (RoFormer, Su et al. 2021)."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from mixerlab.mixers.base import check_positive


class RotaryEmbedding(nn.Module):
    """The frequencies base^(-2i/head_dim), float32 `[head_dim / 2]`, in radians per position.

    `kernels.fused.rotary_heads` rotates pairs (i, i + head_dim/2) with them. They stay float32 when a model is
    cast: frequencies of 16 bits would turn late positions by other angles.
    """

    inverse_frequency: Tensor

    def __init__(self, head_dim: int, base: float):
        super().__init__()
        check_positive(rope_base=base)
        inverse_frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("inverse_frequency", inverse_frequency, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        exact = self.inverse_frequency
        super()._apply(fn, recurse)
        if self.inverse_frequency.dtype != exact.dtype:
            self.inverse_frequency = exact.to(self.inverse_frequency.device)
        return self
