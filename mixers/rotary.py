"""Rotary embedding (RoFormer, Su et al. 2021)."""

import torch
from torch import Tensor, nn

from mixerlab.mixers.base import check_positive


class RotaryEmbedding(nn.Module):
    """The frequencies base^(-2i/head_dim), float32 `[head_dim / 2]`, in radians per position.

    `kernels.fused.rotary_heads` rotates pairs (i, i + head_dim/2) with them.
    """

    inverse_frequency: Tensor

    def __init__(self, head_dim: int, base: float = 10_000.0):
        super().__init__()
        check_positive(rope_base=base)
        inverse_frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("inverse_frequency", inverse_frequency, persistent=False)
