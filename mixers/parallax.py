"""Parallax: softmax attention minus a key-value covariance read by a learned probe (equation parallax_forward)."""

import torch
from torch import Tensor, nn

from mixerlab.kernels.fused.heads import rotary_heads
from mixerlab.kernels.parallax import parallax_attention, parallax_backend
from mixerlab.kernels.parallax.decode import MAX_TOKENS, parallax_decode
from mixerlab.kernels.parallax.reference import visible_keys
from mixerlab.mixers.base import NORM_EPS, AttentionParts, check_sizes, head_dim_of, keep_initial_values, kv_heads_of
from mixerlab.mixers.cache import State, append, kv_cache
from mixerlab.mixers.projected import ProjectedMixer
from mixerlab.mixers.rotary import RotaryEmbedding


class Parallax(ProjectedMixer):
    """`o = softmax attention - Sigma_KV rho` with `rho = W_R x`, projected out.

    Source: Parallax: Parameterized Local Linear Attention, section Parallax Mechanism. `q k` is scaled by
    1/sqrt(head_dim), `rho k` is not.

    Args:
        d_model: width.
        num_heads: heads of the queries and probes.
        rope_base: base of the rotary frequencies.
        rope_on_rho: rotate rho as well, as the paper's models do but for an ablation.
        qkr_norm: RMSNorm on each head's q, k and rho, before RoPE, with the epsilon of the other norms, 1e-5.
        zero_init_rho: start `W_R` at zero, which is softmax attention. By default it starts like `W_Q`, as in the
            paper's figure of weight norms. While rho is zero, its norm multiplies the gradient by 316
            (1 / sqrt(1e-5)), and after one step the norm gives rho its full length: trained attention then loses much
            at once (results/text).
        bias: biases on the five projections, zero at the start.
        num_kv_heads: heads of keys and values, each read by `num_heads / num_kv_heads` heads of queries; as many by
            default.
        head_dim: size of a head, even; d_model / num_heads by default.
        window: a position sees itself and the `window - 1` before it; by default all before it.
        rho_gate: `rho = sigmoid(w_g x) W_R x` (paragraph Gating behavior), here with a `w_g` for each head, and behind
            the norm of rho.
        backend: `auto`, `reference` (PyTorch) or `triton`.

    Raises:
        ValueError: heads that do not divide what they must or are odd, or a `rope_base` that is not a finite number
            above 0.
    """

    input_projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "r_proj")

    def __init__(
        self,
        d_model: int,
        num_heads: int = 2,
        rope_base: float = 10_000.0,
        rope_on_rho: bool = True,
        qkr_norm: bool = True,
        zero_init_rho: bool = False,
        bias: bool = False,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        window: int | None = None,
        rho_gate: bool = False,
        backend: str = "auto",
    ):
        super().__init__()
        check_sizes(window=window)
        self.num_heads, self.kv_heads = num_heads, kv_heads_of(num_heads, num_kv_heads)
        self.head_dim = head_dim_of(d_model, num_heads, head_dim, rope=True)
        self.rope_on_rho, self.qkr_norm, self.backend = rope_on_rho, qkr_norm, backend
        width, kv_width = num_heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj, self.k_proj, self.v_proj, self.r_proj = (
            nn.Linear(d_model, columns, bias=bias) for columns in (width, kv_width, kv_width, width)
        )
        self.o_proj = nn.Linear(width, d_model, bias=bias)
        self.rho_gate, self.window = rho_gate, window
        if rho_gate:
            self.g_proj = nn.Linear(d_model, num_heads, bias=False)
            self.input_projections = (*self.input_projections, "g_proj")
        if zero_init_rho:
            nn.init.zeros_(self.r_proj.weight)
            keep_initial_values(self.r_proj.weight)
        if qkr_norm:
            self.q_norm, self.k_norm, self.r_norm = (nn.RMSNorm(self.head_dim, eps=NORM_EPS) for _ in range(3))
        self.rope = RotaryEmbedding(self.head_dim, rope_base)

    def mix(self, projected: Tensor) -> Tensor:
        q, k, v, rho = self.heads(projected)
        return parallax_attention(q, rho, k, v, window=self.window, backend=self.backend).flatten(2)

    def heads(self, projected: Tensor, start: Tensor | None = None) -> tuple[Tensor, ...]:
        """q, k, v and rho, normed, rotated and gated: `[B, T, heads, head_dim]` of what `project` gives.

        `start`, `[B]`, is the position of the first token of each sequence, 0 by default.
        """
        gains = (self.q_norm.weight, self.k_norm.weight, None, self.r_norm.weight) if self.qkr_norm else None
        rotated = True, True, False, self.rope_on_rho
        frequency = self.rope.inverse_frequency
        heads = self.num_heads, self.kv_heads, self.kv_heads, self.num_heads
        q, k, v, rho = rotary_heads(projected, heads, frequency, rotated, gains, NORM_EPS, start=start)
        if self.rho_gate:
            rho = rho * self.gate(projected)[..., None]
        return q, k, v, rho

    def gate(self, projected: Tensor) -> Tensor:
        """The gate of the probe, `[B, T, num_heads]`."""
        first = 2 * (self.num_heads + self.kv_heads) * self.head_dim
        return projected[..., first : first + self.num_heads].sigmoid()

    def attention_parts(self, x: Tensor) -> AttentionParts:
        projected = self.project(x)
        gate = self.gate(projected) if self.rho_gate else None
        q, k, v, rho = self.heads(projected)
        seen = visible_keys(x.shape[1], self.window, x.device)
        return AttentionParts(q, k, v, self.head_dim**-0.5, rho, gate, seen)

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """Keys and values of the tokens in the window; the probe is not kept."""
        return kv_cache(batch, min(max_len, self.window or max_len), self.kv_heads, self.head_dim, device, dtype)

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        outputs = []
        tokens = MAX_TOKENS if self.window is None else 1  # a window's cache holds what its last token sees
        for q, k, v, rho in zip(*(x.split(tokens, dim=1) for x in self.heads(projected, state["length"])), strict=True):
            append(state, k, v, ring=self.window is not None)
            lengths = state["length"].clamp(max=state["k"].shape[1])
            outputs.append(parallax_decode(q, rho, state["k"], state["v"], lengths=lengths, backend=self.backend))
        return torch.cat(outputs, dim=1).flatten(2)

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        return parallax_backend(device, dtype, self.head_dim, self.backend)
