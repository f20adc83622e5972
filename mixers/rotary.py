"""Rotary embedding (RoFormer, Su et al. 2021)."""

import math

import torch
from torch import Tensor, nn


class RotaryEmbedding(nn.Module):
    """The frequencies base^(-2i/head_dim), float32 `[head_dim / 2]`, in radians per position.

    `kernels.fused.rotary_heads` rotates pairs (i, i + head_dim/2) with them.
    """

    inverse_frequency: Tensor

    def __init__(self, head_dim: int, base: float = 10_000.0):
        super().__init__()
        if not 0 < base < math.inf:
            raise ValueError(f"mixer.rope_base={base} must be a finite number above 0")
        inverse_frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("inverse_frequency", inverse_frequency, persistent=False)
