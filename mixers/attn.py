"""Causal softmax attention with rotary embedding (Vaswani et al. 2017; RoFormer, Su et al. 2021)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.kernels.fused.heads import rotary_heads
from mixerlab.kernels.parallax import parallax_attention, parallax_backend
from mixerlab.kernels.parallax.reference import visible_keys
from mixerlab.kernels.softmax_attention import attention_backend, softmax_attention
from mixerlab.mixers.base import NORM_EPS, AttentionParts, check_sizes, head_dim_of, kv_heads_of
from mixerlab.mixers.cache import State, append, kv_cache
from mixerlab.mixers.projected import ProjectedMixer
from mixerlab.mixers.rotary import RotaryEmbedding


class Attention(ProjectedMixer):
    """`softmax(q k^T / sqrt(head_dim)) v`, RoPE on q and k.

    Args:
        d_model: width.
        num_heads: heads of the queries.
        num_kv_heads: heads of keys and values, each read by `num_heads / num_kv_heads` heads of queries (grouped-query
            attention, Ainslie et al. 2023); as many by default.
        head_dim: size of a head, even; d_model / num_heads by default.
        window: a position sees itself and the `window - 1` before it; by default all before it.
        rope_base: base of the rotary frequencies.
        qk_norm: RMSNorm on each head's q and k before RoPE, with the epsilon of the other norms, 1e-5.
        bias: biases on the four projections, as mad-lab's attention has them.

    Raises:
        ValueError: heads that do not divide what they must or are odd, or a `rope_base` that is not a finite number
            above 0.
    """

    input_projections = ("q_proj", "k_proj", "v_proj")

    def __init__(
        self,
        d_model: int,
        num_heads: int = 2,
        rope_base: float = 10_000.0,
        qk_norm: bool = True,
        bias: bool = False,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        window: int | None = None,
    ):
        super().__init__()
        check_sizes(window=window)
        self.num_heads, self.kv_heads = num_heads, kv_heads_of(num_heads, num_kv_heads)
        self.head_dim = head_dim_of(d_model, num_heads, head_dim, rope=True)
        self.qk_norm, self.window = qk_norm, window
        width, kv_width = num_heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(d_model, width, bias=bias)
        self.k_proj = nn.Linear(d_model, kv_width, bias=bias)
        self.v_proj = nn.Linear(d_model, kv_width, bias=bias)
        self.o_proj = nn.Linear(width, d_model, bias=bias)
        if qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(self.head_dim, eps=NORM_EPS) for _ in range(2))
        self.rope = RotaryEmbedding(self.head_dim, rope_base)

    def mix(self, projected: Tensor) -> Tensor:
        q, k, v = self.heads(projected)
        if self.window is not None:  # Parallax's kernels know windows; with probes of zero they give attention
            return parallax_attention(q, torch.zeros_like(q), k, v, window=self.window).flatten(2)
        if self.kv_heads < self.num_heads:
            k, v = (x.repeat_interleave(self.num_heads // self.kv_heads, dim=2) for x in (k, v))
        return softmax_attention(q, k, v).flatten(2)

    def heads(self, projected: Tensor, start: Tensor | None = None) -> tuple[Tensor, ...]:
        """q and k, normed and rotated, and v: `[B, T, heads, head_dim]` of what `project` gives.

        `start`, `[B]`, is the position of the first token of each sequence, 0 by default.
        """
        gains = (self.q_norm.weight, self.k_norm.weight, None) if self.qk_norm else None
        rotated = True, True, False
        frequency = self.rope.inverse_frequency
        heads = self.num_heads, self.kv_heads, self.kv_heads
        return rotary_heads(projected, heads, frequency, rotated, gains, NORM_EPS, start=start)

    def attention_parts(self, x: Tensor) -> AttentionParts:
        q, k, v = self.heads(self.project(x))
        return AttentionParts(q, k, v, self.head_dim**-0.5, seen=visible_keys(x.shape[1], self.window, x.device))

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        return kv_cache(batch, min(max_len, self.window or max_len), self.kv_heads, self.head_dim, device, dtype)

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        outputs = []
        tokens = projected.shape[1] if self.window is None else 1  # a window's cache holds what its last token sees
        for q, k, v in zip(*(x.split(tokens, dim=1) for x in self.heads(projected, state["length"])), strict=True):
            positions = append(state, k, v, ring=self.window is not None)
            q, k, v = (x.transpose(1, 2) for x in (q, state["k"], state["v"]))
            seen = torch.arange(k.shape[2], device=k.device) <= positions[:, None, :, None]  # [B, 1, T, max_len]
            grouped = self.kv_heads < self.num_heads
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=grouped)
            outputs.append(o.transpose(1, 2).flatten(2))
        return torch.cat(outputs, dim=1)

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        if self.window is not None:
            return parallax_backend(device, dtype, self.head_dim)
        return attention_backend(device, dtype, self.head_dim)
