"""Small parts that several mixers share: rotary embedding, short causal convolution."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.fused import rotary
from kernels.short_convolution import short_convolution


class RotaryEmbedding(nn.Module):
    """Rotates pairs (i, i + head_dim/2) by position times base^(-2i/head_dim) (RoFormer, Su et al. 2021)."""

    def __init__(self, head_dim: int, base: float = 10_000.0):
        super().__init__()
        inverse_frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("inverse_frequency", inverse_frequency, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[B, T, H, head_dim]`, rotated; angles in float32, or float64 for a float64 `x`."""
        return rotary(x, self.inverse_frequency)


def project(x: Tensor, *projections: nn.Linear) -> tuple[Tensor, ...]:
    """`tuple(p(x) for p in projections)` as one matrix product: reads `x` once, and so does its gradient.

    The projections have no bias; they stay separate parameters, which Muon orthogonalises one by one.
    """
    weight = torch.cat([projection.weight for projection in projections])
    return F.linear(x, weight).split([projection.out_features for projection in projections], dim=-1)


class ShortConvolution(nn.Conv1d):
    """Causal depthwise convolution over `kernel_size` positions, then SiLU: `[B, T, C]` to `[B, T, C]`.

    The parameters and their initialisation are those of `nn.Conv1d`: weight `[C, 1, kernel_size]`, bias `[C]`.
    """

    def __init__(self, channels: int, kernel_size: int = 4, bias: bool = False):
        super().__init__(channels, channels, kernel_size, groups=channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return short_convolution(x, self.weight[:, 0], self.bias)
