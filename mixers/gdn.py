"""Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024, arXiv 2412.06464): an associative memory with decay."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mixerlab.kernels.fused.gates import gates
from mixerlab.kernels.fused.heads import unit_norm
from mixerlab.kernels.fused.rms_norm import rms_norm
from mixerlab.kernels.fused.swiglu import swiglu
from mixerlab.kernels.gated_delta_rule import gated_delta_rule, gated_delta_rule_backend
from mixerlab.kernels.gated_delta_rule.reference import gated_delta_rule_steps
from mixerlab.mixers.base import NORM_EPS, check_sizes, head_dim_of
from mixerlab.mixers.cache import State, behind_tail, convolution_tail
from mixerlab.mixers.convolution import ShortConvolution, split_and_convolve
from mixerlab.mixers.gates import initial_decays
from mixerlab.mixers.means import means
from mixerlab.mixers.projected import ProjectedMixer


class GatedDeltaNet(ProjectedMixer):
    """`S_t = g_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T`, read at `q_t`, then a gated norm.

    q, k and v pass a short convolution and SiLU; q and k get unit norm per head. `beta = sigmoid(W_b x)` and
    `log g = -exp(A_log) softplus(W_a x + dt_bias)`, one number per head each. The output of each head is
    RMS-normalised and multiplied by `silu(W_g x)`.

    The affine form adds an intercept, `o_t = mean(v) + S_t (q_t - mean(k))`, and writes `v_t - mean(v)` at `k_t -
    mean(k)`, means over all positions up to t. Parallax (paragraph Implications for other attention mechanisms) leaves
    it to analogy. The unit norm is then that of what is centred, because longer keys would let the state grow.

    Args:
        d_model: width.
        num_heads: heads of size `d_model / num_heads`, for keys and, times `expand_v`, for values.
        expand_v: how many times as wide as its keys a head's values are, and with them the gate.
        d_conv: positions that the short convolutions see; 0 for none, and no SiLU.
        unnormed: no unit norm of q and k, and no norm of the output. Then keys can be so long that the state grows
            without bounds.
        ungated: DeltaNet (Yang et al. 2024, arXiv 2406.06484): without decay, g = 1, and without `silu(W_g x)`.
        affine: with an intercept.
        allow_neg_eigval: beta in (0, 2), twice the sigmoid, so that `I - beta k k^T` has eigenvalues down to -1, which
            state tracking needs (Grazzi et al. 2024, arXiv 2411.12537).
        chunk_size: positions that the operator handles together; speed only.
        backend: `auto`, `reference` or `triton`.

    Raises:
        ValueError: heads that do not divide the width, an `expand_v` or `chunk_size` below 1, a `d_conv` below 0.
    """

    input_projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "g_proj", "a_proj", "b_proj")

    def __init__(
        self,
        d_model: int,
        num_heads: int = 2,
        expand_v: int = 2,
        d_conv: int = 4,
        unnormed: bool = False,
        ungated: bool = False,
        affine: bool = False,
        allow_neg_eigval: bool = False,
        chunk_size: int = 64,
        backend: str = "auto",
    ):
        super().__init__()
        self.d_model, self.num_heads, self.d_conv = d_model, num_heads, d_conv
        self.head_dim = head_dim_of(d_model, num_heads)
        check_sizes(0, d_conv=d_conv)
        check_sizes(expand_v=expand_v, chunk_size=chunk_size)
        self.expand_v, self.chunk_size, self.backend = expand_v, chunk_size, backend
        self.unnormed, self.ungated, self.affine, self.allow_neg_eigval = unnormed, ungated, affine, allow_neg_eigval

        self.scale = 1.0 if affine else self.head_dim**-0.5  # beside an intercept the scale matters
        d_value = expand_v * d_model
        self.q_proj, self.k_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))
        self.v_proj, self.g_proj = (nn.Linear(d_model, d_value, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(d_value, d_model, bias=False)
        if d_conv:
            self.q_conv, self.k_conv, self.v_conv = (
                ShortConvolution(channels, d_conv) for channels in (d_model, d_model, d_value)
            )
        self.a_proj = nn.Linear(d_model, num_heads, bias=False)
        self.b_proj = nn.Linear(d_model, num_heads, bias=False)
        self.A_log, self.dt_bias = initial_decays(num_heads, num_heads)
        if not unnormed:
            self.norm = nn.RMSNorm(expand_v * self.head_dim, eps=NORM_EPS)
        if ungated:
            self.input_projections = ("q_proj", "k_proj", "v_proj", "b_proj")
            del self.g_proj, self.a_proj, self.A_log, self.dt_bias

    def mix(self, projected: Tensor) -> Tensor:
        return self._memory(self.parts(projected))

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """S of each head, keys by values, what the convolutions look back at, and with an intercept the means."""
        shape = batch, self.num_heads, self.head_dim, self.expand_v * self.head_dim
        memory = torch.zeros(shape, device=device, dtype=torch.promote_types(dtype, torch.float32))
        state = {
            "memory": memory,
            "tail": convolution_tail(batch, self.d_conv, (2 + self.expand_v) * self.d_model, device, dtype),
        }
        if self.affine:
            state["means"] = memory.new_zeros(batch, (1 + self.expand_v) * self.num_heads, self.head_dim)
            state["length"] = torch.zeros(batch, 1, 1, device=device, dtype=torch.int32)
        return state

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        parts = self.parts(behind_tail(state["tail"], projected))
        return self._memory([x[:, -projected.shape[1] :] for x in parts], state)

    def parts(self, projected: Tensor) -> tuple[Tensor, ...]:
        """q, k and v as heads of one width, log decay and beta, and the gate of the output if there is one."""
        q, k, v, *gate, beta_logit = split_and_convolve(
            projected,
            self.head_dim,
            (self.num_heads, self.num_heads, self.expand_v * self.num_heads),
            convolutions=(self.q_conv, self.k_conv, self.v_conv) if self.d_conv else (),
            normed=0 if self.unnormed or self.affine else 2,
            flat=(self.num_heads,) if self.ungated else (self.expand_v * self.d_model, self.num_heads, self.num_heads),
        )
        with torch.autocast(projected.device.type, enabled=False):
            if self.ungated:
                beta = beta_logit.to(torch.promote_types(beta_logit.dtype, torch.float32)).sigmoid()
                log_decay = torch.zeros_like(beta)
            else:
                log_decay, beta = gates(gate.pop(), beta_logit, self.dt_bias, log_rate=self.A_log)
            return q, k, v, log_decay, 2 * beta if self.allow_neg_eigval else beta, *gate

    def _memory(self, parts: Sequence[Tensor], state: State | None = None) -> Tensor:
        """What S gives for q, normed and gated; with a state token by token, from the recurrence."""
        q, k, v, log_decay, beta, *gate = parts
        dtype = v.dtype
        with torch.autocast(v.device.type, enabled=False):
            if self.affine:
                if state is not None:
                    q, k, v = (x.to(state["means"].dtype) for x in (q, k, v))
                mean_k, mean_v = means(torch.cat((k, v), dim=2), state).split((k.shape[2], v.shape[2]), dim=2)
                q, k, v = q - mean_k, k - mean_k, v - mean_v
                q, k = (q, k) if self.unnormed else map(unit_norm, (q, k))
            # A row of S reads only its own value: wider values are more heads of the same key.
            if state is None:
                sizes: dict = {"scale": self.scale, "chunk_size": self.chunk_size, "backend": self.backend}
                o = gated_delta_rule(q, k, v, log_decay, beta, **sizes)
            else:
                wide = v.flatten(-2).unflatten(-1, (self.num_heads, -1))
                o = gated_delta_rule_steps(q, k, wide, log_decay, beta, state["memory"], self.scale).view_as(v)
            o = (mean_v + o if self.affine else o).flatten(-2).unflatten(-1, (self.num_heads, -1)).to(dtype)
            o = (o if self.unnormed else rms_norm(o, self.norm.weight, NORM_EPS)).flatten(-2)
            return swiglu(gate[0], o) if gate else o

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        return gated_delta_rule_backend(device, dtype, self.head_dim, self.chunk_size, self.backend)
