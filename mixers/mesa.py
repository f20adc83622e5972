"""MesaNet (von Oswald et al. 2025, arXiv 2506.05233): ridge regression from keys to values at each step."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.kernels.centring import centred
from mixerlab.kernels.centring.reference import centred_steps
from mixerlab.kernels.common.chunked import NARROW_HEAD_DIMS, TRITON_HEAD_DIMS, choose_backend
from mixerlab.kernels.fused.gates import gates
from mixerlab.kernels.fused.rms_norm import add_rms_norm, rms_norm
from mixerlab.kernels.mesa import mesa
from mixerlab.kernels.mesa.reference import mesa_reference
from mixerlab.mixers.base import NORM_EPS, check_sizes, head_dim_of
from mixerlab.mixers.cache import State, behind_tail, convolution_tail
from mixerlab.mixers.convolution import ShortConvolution, split_and_convolve
from mixerlab.mixers.projected import ProjectedMixer

INITIAL_RIDGE = 1.0


class MesaNet(ProjectedMixer):
    """`o_t = G_t (H_t + Lambda)^{-1} q_t`, the sums of `beta v k^T` and `beta k k^T` that decay by gamma.

    q and k pass a short convolution and SiLU and get unit norm per head. `gamma = sigmoid(W_a x + a)` and
    `beta = sigmoid(W_b x + b)` are one number per head each; the diagonal Lambda is learned, positive and at
    least `ridge_lower_bound`. The output of each head is RMS-normalised.

    Affine MesaNet has an intercept: `o_t = mean(v) + G_t (H_t + Lambda)^{-1} (q_t - mean(k))`, H and G of keys and
    values without their means, all with the same weights (Parallax, section Connection to Other Attention Mechanisms,
    which divides H by t and so has a ridge t times as large). The intercept has no ridge.

    Args:
        d_model: width.
        num_heads: heads of size `d_model / num_heads`.
        d_conv: positions that the short convolutions see; 0 for none, and no SiLU.
        ungated: gamma and beta are 1: all positions count the same.
        unnormed: no unit norm of q and k, and no norm of the output.
        affine: with an intercept.
        ridge_lower_bound: the least regularisation, in (0, 1): Lambda starts at 1.
        cg_iterations: the most steps of conjugate gradients, in the forward and in the backward. 30 leave a
            relative residual under 1e-4 (tested: heads of 64, 512 tokens, repeated keys, ridge at its bound, float32);
            the Triton kernels take fewer where they have converged (`kernels.mesa.mesa`).
        chunk_size: positions that the operator handles together; speed only.
        backend: `auto`, `reference` or `triton`.

    Raises:
        ValueError: heads that do not divide the width, or a number out of its range.
    """

    input_projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "a_proj", "b_proj")
    biases_in_mix = frozenset({"a_proj", "b_proj"})  # `gates` adds them, in float32

    def __init__(
        self,
        d_model: int,
        num_heads: int = 2,
        d_conv: int = 4,
        ungated: bool = False,
        unnormed: bool = False,
        affine: bool = False,
        ridge_lower_bound: float = 0.25,
        cg_iterations: int = 30,
        chunk_size: int = 64,
        backend: str = "auto",
    ):
        super().__init__()
        self.d_model, self.num_heads, self.d_conv = d_model, num_heads, d_conv
        self.head_dim = head_dim_of(d_model, num_heads)
        check_sizes(0, d_conv=d_conv)
        check_sizes(cg_iterations=cg_iterations, chunk_size=chunk_size)
        if not 0 < ridge_lower_bound < INITIAL_RIDGE:
            raise ValueError(
                f"mixer.ridge_lower_bound={ridge_lower_bound} must lie between 0 and {INITIAL_RIDGE:g},"
                " where the ridge starts"
            )
        self.ridge_lower_bound, self.cg_iterations = ridge_lower_bound, cg_iterations
        self.ungated, self.unnormed, self.affine = ungated, unnormed, affine
        self.chunk_size, self.backend = chunk_size, backend

        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        if d_conv:
            self.q_conv, self.k_conv = (ShortConvolution(d_model, d_conv) for _ in range(2))
        if not ungated:
            self.a_proj, self.b_proj = (nn.Linear(d_model, num_heads) for _ in range(2))
        else:
            self.input_projections = ("q_proj", "k_proj", "v_proj")
        # softplus(ridge_logit) + ridge_lower_bound = INITIAL_RIDGE
        logit = math.log(math.expm1(INITIAL_RIDGE - ridge_lower_bound))
        self.ridge_logit = nn.Parameter(torch.full((d_model,), logit))
        if not unnormed:
            self.norm = nn.RMSNorm(self.head_dim, eps=NORM_EPS)

    def mix(self, projected: Tensor) -> Tensor:
        return self._regression(self.parts(projected))

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """H and G of each head, side by side, what the convolutions look back at, and with an intercept the means."""
        size, wide = self.head_dim, torch.promote_types(dtype, torch.float32)
        memory = torch.zeros(batch, self.num_heads, size, 2 * size, device=device, dtype=wide)
        means = {"means": memory[:, :, 0].clone(), "weight": memory[:, :, 0, 0].clone()} if self.affine else {}
        tail = convolution_tail(batch, self.d_conv, 2 * self.d_model, device, dtype)
        return {"memory": memory, "tail": tail, **means}

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        parts = self.parts(behind_tail(state["tail"], projected))
        return self._regression([x[:, -projected.shape[1] :] for x in parts], state).to(projected.dtype)

    def parts(self, projected: Tensor) -> tuple[Tensor, ...]:
        """q, k and v as heads, log gamma and beta `[B, T, num_heads]`."""
        q, k, v, *logits = split_and_convolve(
            projected,
            self.head_dim,
            (self.num_heads,) * 3,
            convolutions=(self.q_conv, self.k_conv) if self.d_conv else (),
            normed=0 if self.unnormed else 2,
            flat=() if self.ungated else (self.num_heads,) * 2,
        )
        with torch.autocast(projected.device.type, enabled=False):
            if not self.ungated:
                decay_logit, beta_logit = logits
                return q, k, v, *gates(decay_logit, beta_logit, self.a_proj.bias, beta_bias=self.b_proj.bias)
            beta = q.new_ones(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
            return q, k, v, torch.zeros_like(beta), beta

    def _regression(self, parts: Sequence[Tensor], state: State | None = None) -> Tensor:
        """Of all positions so far, read at q, and the norm behind it; with a state from there on."""
        with torch.autocast(parts[0].device.type, enabled=False):
            ridge = (F.softplus(self.ridge_logit) + self.ridge_lower_bound).view(self.num_heads, self.head_dim)
            q, k, v, log_decay, beta = parts
            if state is None:
                if self.affine:
                    q, k, v, beta, mean_v = centred(q, k, v, log_decay, beta, backend=self.backend)
                sizes = {"iterations": self.cg_iterations, "chunk_size": self.chunk_size}
                o = mesa(q, k, v, log_decay, beta, ridge, **sizes, backend=self.backend)
            else:
                if self.affine:
                    q, k, v, beta, mean_v = centred_steps(q, k, v, log_decay, beta, state["means"], state["weight"])
                memory = state["memory"]
                o = mesa_reference(q, k, v, log_decay, beta, ridge, self.cg_iterations, self.chunk_size, memory)
            if self.unnormed:
                o = mean_v + o if self.affine else o
            elif self.affine:
                _, o = add_rms_norm(mean_v, o, self.norm.weight, NORM_EPS)
            else:
                o = rms_norm(o, self.norm.weight, NORM_EPS)
            return o.flatten(-2)

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        head_dims = NARROW_HEAD_DIMS if self.affine else TRITON_HEAD_DIMS  # those of `centred`
        return choose_backend(device, dtype, self.head_dim, self.chunk_size, self.backend, head_dims)
