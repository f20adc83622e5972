"""Local linear attention (Zuo et al. 2025, arXiv 2510.01450; Parallax, section Local Linear Attention)."""

import torch
from torch import Tensor, nn

from mixerlab.kernels.fused.heads import rotary_heads
from mixerlab.kernels.local_linear import solved_probe, solved_probe_backend
from mixerlab.kernels.local_linear.reference import build_systems, solve
from mixerlab.kernels.parallax import parallax_attention, parallax_backend
from mixerlab.mixers.base import NORM_EPS, AttentionParts, check_positive, check_sizes, head_dim_of
from mixerlab.mixers.cache import State, append, kv_cache
from mixerlab.mixers.projected import ProjectedMixer
from mixerlab.mixers.rotary import RotaryEmbedding


class LocalLinearAttention(ProjectedMixer):
    """The prediction at q of `b + W (k - q)`, fitted to the values of all keys so far with weights `exp(q k / h)`.

    The fit has the ridge `lambda |W|^2`. It is `softmax attention - (1 + eta) Sigma_KV rho*` (equation
    `parameterized_lla`), so Parallax attention with a probe that is solved and not learned, with the boundary
    amplification eta in it. Softmax attention is its limit for an infinite ridge, affine MesaNet for an infinite h.

    Args:
        d_model: width.
        num_heads: heads of size d_model / num_heads, even.
        rope_base: base of the rotary frequencies of q and k.
        qk_norm: RMSNorm on each head's q and k, before RoPE.
        ridge: lambda, above 0.
        relative_ridge: lambda times the sum of the weights, as in the authors' kernels (FlashLLA) and in the paper's
            affine MesaNet, whose H is a mean. Otherwise lambda itself, as in the paper's local linear attention: next
            to large weights it vanishes, probes grow without bounds, and float32 does not solve for them.
        bandwidth: h; sqrt(head_dim) by default, the scale of softmax attention.
        cg_iterations: steps of conjugate gradients, in the forward and in the backward; a smaller ridge takes more. 16
            leave a relative error under 1e-5 in the probes of unit-RMS heads of 64 (512 tokens, float32). With the
            ridge 0.1 it is 4e-3, and 1e-5 after 32; without `relative_ridge` 0.2, and 1e-5 after 96. Before that,
            rounding decides what they leave, and a step from a state differs from the forward.
        backend: of the probes and of the attention with them: `auto`, `reference` (PyTorch) or `triton`.

    Raises:
        ValueError: heads that do not divide the width or are odd, or a number out of its range.
    """

    input_projections = ("q_proj", "k_proj", "v_proj")

    def __init__(
        self,
        d_model: int,
        num_heads: int = 2,
        rope_base: float = 10_000.0,
        qk_norm: bool = True,
        ridge: float = 1.0,
        relative_ridge: bool = True,
        bandwidth: float | None = None,
        cg_iterations: int = 16,
        backend: str = "auto",
    ):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim_of(d_model, num_heads, rope=True)
        check_sizes(cg_iterations=cg_iterations)
        check_positive(ridge=ridge, bandwidth=bandwidth)
        self.qk_norm, self.backend = qk_norm, backend
        self.scale = self.head_dim**-0.5 if bandwidth is None else 1 / bandwidth
        self.ridge, self.relative_ridge, self.cg_iterations = ridge, relative_ridge, cg_iterations
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        if qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(self.head_dim, eps=NORM_EPS) for _ in range(2))
        self.rope = RotaryEmbedding(self.head_dim, rope_base)

    def mix(self, projected: Tensor) -> Tensor:
        q, k, v = self.heads(projected)
        rho = self.probes(q, k)
        q, k, v = (x.to(rho.dtype) for x in (q, k, v))  # large probes read differences between keys
        o = parallax_attention(q, rho, k, v, scale=self.scale, backend=self.backend)
        return o.to(projected.dtype).flatten(2)

    def heads(self, projected: Tensor, start: Tensor | None = None) -> tuple[Tensor, ...]:
        """q and k, normed and rotated, and v: `[B, T, num_heads, head_dim]` of what `project` gives."""
        gains = (self.q_norm.weight, self.k_norm.weight, None) if self.qk_norm else None
        frequency = self.rope.inverse_frequency
        return rotary_heads(projected, self.num_heads, frequency, (True, True, False), gains, NORM_EPS, start=start)

    def probes(self, q: Tensor, k: Tensor) -> Tensor:
        """`(1 + eta) rho*`, `[B, T, num_heads, head_dim]`, at least float32."""
        return solved_probe(
            q,
            k,
            scale=self.scale,
            ridge=self.ridge,
            relative=self.relative_ridge,
            iterations=self.cg_iterations,
            backend=self.backend,
        )

    def attention_parts(self, x: Tensor) -> AttentionParts:
        q, k, v = self.heads(self.project(x))
        return AttentionParts(q, k, v, self.scale, self.probes(q, k))

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        return kv_cache(batch, max_len, self.num_heads, self.head_dim, device, dtype)

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        """Solves anew for each token, over the whole cache."""
        q, k, v = self.heads(projected, state["length"])
        positions = append(state, k, v)
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = (x.transpose(1, 2).to(wide) for x in (q, state["k"], state["v"]))
            hidden = torch.arange(k.shape[2], device=k.device) > positions[:, None, :, None]  # [B, 1, T, max_len]
            systems = build_systems(q, k, hidden, self.scale, self.ridge, self.relative_ridge)
            p, t = systems.weights, solve(q, systems, self.cg_iterations) @ k.mT
            o = (p * (1 + (p * t).sum(-1, keepdim=True) - t)) @ v
        return o.transpose(1, 2).flatten(2).to(projected.dtype)

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        of_probe = solved_probe_backend(device, dtype, self.head_dim, self.backend)
        wide = torch.promote_types(dtype, torch.float32)
        of_attention = parallax_backend(device, wide, self.head_dim, self.backend)
        return of_probe if of_probe == of_attention else "reference"
