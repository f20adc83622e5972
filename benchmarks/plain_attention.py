"""Causal attention as one writes it without mixerlab's kernels: what `trainer.compile` is measured with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.mixers.base import SequenceMixer


class PlainAttention(SequenceMixer):
    """`mixers.attn.Attention` without norms, in plain PyTorch: `nn.Linear`, RoPE, `F.scaled_dot_product_attention`."""

    inverse_frequency: Tensor

    def __init__(self, d_model: int, num_heads: int = 2, rope_base: float = 10_000.0):
        super().__init__()
        self.d_model, self.num_heads, self.head_dim = d_model, num_heads, d_model // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        exponent = torch.arange(0, self.head_dim, 2) / self.head_dim
        self.register_buffer("inverse_frequency", rope_base**-exponent, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(self._rotated(q), self._rotated(k), v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # [B, heads, T, head_dim]

    def _rotated(self, x: Tensor) -> Tensor:
        """Rotates the pairs (j, j + head_dim / 2) of `[B, heads, T, head_dim]`."""
        angles = torch.arange(x.shape[2], device=x.device)[:, None] * self.inverse_frequency
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)

    def state_size(self, seq_len: int) -> int:
        """Keys and values of every token."""
        return 2 * self.d_model * seq_len
