"""Kimi Delta Attention (Kimi Linear, arXiv 2510.26692): Gated DeltaNet with a decay for each channel."""

import torch
from torch import Tensor, nn

from mixerlab.kernels.fused.gates import gates
from mixerlab.kernels.fused.linear import linear
from mixerlab.kernels.fused.rms_norm import rms_norm
from mixerlab.kernels.gated_delta_rule.reference import gated_delta_rule_steps
from mixerlab.kernels.kimi_delta_rule import kimi_delta_rule, kimi_delta_rule_backend
from mixerlab.mixers.base import NORM_EPS, check_sizes, head_dim_of
from mixerlab.mixers.cache import State, behind_tail, convolution_tail
from mixerlab.mixers.convolution import ShortConvolution, split_and_convolve
from mixerlab.mixers.gates import initial_decays
from mixerlab.mixers.projected import ProjectedMixer


class KimiDeltaAttention(ProjectedMixer):
    """`S_t = S_{t-1} Diag(g_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T`, read at `q_t`, then a gated norm.

    q, k and v pass a short convolution and SiLU; q and k get unit norm per head. `beta = sigmoid(W_b x)`, one number
    per head, and `log g = -exp(A_log) softplus(W_f x + dt_bias)`, one per channel. The output of each head is
    RMS-normalised and multiplied by `sigmoid(W_g x + b_g)`. W_f and W_g have the rank of a head. Without decay and gate
    it is DeltaNet.

    Args:
        d_model: width.
        num_heads: heads of size `d_model / num_heads`.
        d_conv: positions that the short convolutions see; 0 for none, and no SiLU.
        allow_neg_eigval: beta in (0, 2), as for Gated DeltaNet.
        chunk_size: positions that are solved together, a power of two; speed only.
        backend: `auto`, `reference` or `triton`.

    Raises:
        ValueError: heads that do not divide the width, a `d_conv` below 0, a `chunk_size` that is no power of two.
    """

    input_projections = ("q_proj", "k_proj", "v_proj", "f_a_proj", "g_a_proj", "b_proj")

    def __init__(
        self,
        d_model: int,
        num_heads: int = 2,
        d_conv: int = 4,
        allow_neg_eigval: bool = False,
        chunk_size: int = 64,
        backend: str = "auto",
    ):
        super().__init__()
        self.d_model, self.num_heads, self.d_conv = d_model, num_heads, d_conv
        self.head_dim = head_dim_of(d_model, num_heads)
        check_sizes(0, d_conv=d_conv)
        check_sizes(chunk_size=chunk_size)
        if chunk_size & (chunk_size - 1):
            raise ValueError(f"mixer.chunk_size={chunk_size} must be a power of two")
        self.allow_neg_eigval, self.chunk_size, self.backend = allow_neg_eigval, chunk_size, backend
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        if d_conv:
            self.q_conv, self.k_conv, self.v_conv = (ShortConvolution(d_model, d_conv) for _ in range(3))
        self.f_a_proj, self.g_a_proj = (nn.Linear(d_model, self.head_dim, bias=False) for _ in range(2))
        self.f_b_proj, self.g_b_proj = (nn.Linear(self.head_dim, d_model, bias=bias) for bias in (False, True))
        self.b_proj = nn.Linear(d_model, num_heads, bias=False)
        self.A_log, self.dt_bias = initial_decays(num_heads, d_model)
        self.norm = nn.RMSNorm(self.head_dim, eps=NORM_EPS)

    def mix(self, projected: Tensor) -> Tensor:
        *parts, gate = self.parts(projected)
        with torch.autocast(projected.device.type, enabled=False):
            return self._gated(kimi_delta_rule(*parts, chunk_size=self.chunk_size, backend=self.backend), gate)

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """S of each head, keys by values, and what the convolutions look back at."""
        memory = batch, self.num_heads, self.head_dim, self.head_dim
        return {
            "memory": torch.zeros(memory, device=device, dtype=torch.promote_types(dtype, torch.float32)),
            "tail": convolution_tail(batch, self.d_conv, 3 * self.d_model, device, dtype),
        }

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        """Token by token, from the recurrence."""
        parts = self.parts(behind_tail(state["tail"], projected))
        q, k, v, log_decay, beta, gate = (x[:, -projected.shape[1] :] for x in parts)
        with torch.autocast(projected.device.type, enabled=False):
            return self._gated(gated_delta_rule_steps(q, k, v, log_decay, beta, state["memory"]), gate)

    def parts(self, projected: Tensor) -> tuple[Tensor, ...]:
        """q, k and v as heads, log decay `[B, T, num_heads, head_dim]`, beta, and the logits of the output's gate."""
        q, k, v, f, g, beta_logit = split_and_convolve(
            projected,
            self.head_dim,
            (self.num_heads,) * 3,
            convolutions=(self.q_conv, self.k_conv, self.v_conv) if self.d_conv else (),
            normed=2,
            flat=(self.head_dim, self.head_dim, self.num_heads),
        )
        f, gate = linear(f, self.f_b_proj.weight), linear(g, self.g_b_proj.weight, self.g_b_proj.bias)
        with torch.autocast(projected.device.type, enabled=False):
            rate = self.A_log.repeat_interleave(self.head_dim)
            log_decay, beta = gates(f, beta_logit, self.dt_bias, log_rate=rate)
            log_decay = log_decay.unflatten(-1, (self.num_heads, -1))
            return q, k, v, log_decay, 2 * beta if self.allow_neg_eigval else beta, gate

    def _gated(self, o: Tensor, gate: Tensor) -> Tensor:
        return rms_norm(o, self.norm.weight, NORM_EPS).flatten(-2) * gate.to(o.dtype).sigmoid()

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        return kimi_delta_rule_backend(device, dtype, self.head_dim, self.chunk_size, self.backend)
