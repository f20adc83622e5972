"""Affine linear attention, Parallax with uniform weights (its section Connection to Other Attention Mechanisms)."""

import torch
from torch import Tensor, nn

from mixerlab.kernels.fused.heads import Form, Part, split_heads
from mixerlab.kernels.parallax import parallax_attention, parallax_backend
from mixerlab.mixers.base import NORM_EPS, head_dim_of, keep_initial_values
from mixerlab.mixers.cache import State
from mixerlab.mixers.projected import ProjectedMixer


class AffineLinearAttention(ProjectedMixer):
    """`o_t = mean(v) - (mean(v k^T) - mean(v) mean(k)^T) rho_t` with `rho = W_R x`, means up to t, projected out.

    It is linear attention with an intercept, and Parallax with queries of zero, which its kernels compute. With a probe
    of zero it is value averaging.

    Args:
        d_model: width; `num_heads` must divide it.
        num_heads: heads of size d_model / num_heads.
        kr_norm: RMSNorm on each head's k and rho.
        zero_init_rho: start `W_R` at zero, which is value averaging.
        backend: `auto`, `reference` (PyTorch) or `triton`.

    Raises:
        ValueError: heads that do not divide the width.
    """

    input_projections = ("r_proj", "k_proj", "v_proj")

    def __init__(
        self,
        d_model: int,
        num_heads: int = 2,
        kr_norm: bool = True,
        zero_init_rho: bool = False,
        backend: str = "auto",
    ):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim_of(d_model, num_heads)
        self.kr_norm, self.backend = kr_norm, backend
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        if zero_init_rho:
            nn.init.zeros_(self.r_proj.weight)
            keep_initial_values(self.r_proj.weight)
        if kr_norm:
            self.r_norm, self.k_norm = (nn.RMSNorm(self.head_dim, eps=NORM_EPS) for _ in range(2))

    def mix(self, projected: Tensor) -> Tensor:
        rho, k, v = self.heads(projected)
        return parallax_attention(torch.zeros_like(rho), rho, k, v, backend=self.backend).flatten(2)

    def heads(self, projected: Tensor) -> tuple[Tensor, ...]:
        """rho and k, normed, and v: `[B, T, num_heads, head_dim]` of what `project` gives."""
        forms = (Form.RMS_NORM, Form.RMS_NORM, Form.VIEW) if self.kr_norm else (Form.VIEW,) * 3
        gains = (self.r_norm.weight, self.k_norm.weight) if self.kr_norm else ()
        return split_heads(
            projected, [Part(self.num_heads, self.head_dim, form) for form in forms], gains=gains, eps=NORM_EPS
        )

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """The means of keys and values, their covariance, keys by values, and of how many tokens."""
        wide = torch.promote_types(dtype, torch.float32)
        vectors = batch, self.num_heads, self.head_dim
        mean_k, mean_v = (torch.zeros(vectors, device=device, dtype=wide) for _ in range(2))
        return {
            "mean_k": mean_k,
            "mean_v": mean_v,
            "covariance": torch.zeros(*vectors, self.head_dim, device=device, dtype=wide),
            "length": torch.zeros(batch, 1, 1, device=device, dtype=torch.int32),
        }

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        """Token by token, from the recurrence of a covariance (Welford 1962)."""
        mean_k, mean_v, covariance, length = (state[key] for key in ("mean_k", "mean_v", "covariance", "length"))
        outputs = []
        with torch.autocast(projected.device.type, enabled=False):
            for rho, k, v in zip(*(x.to(mean_k.dtype).unbind(1) for x in self.heads(projected)), strict=True):
                length += 1
                off = k - mean_k  # from the mean before this token
                mean_k += off / length
                mean_v += (v - mean_v) / length
                covariance += (off[..., None] * (v - mean_v)[..., None, :] - covariance) / length[..., None]
                outputs.append(mean_v - (rho[..., None, :] @ covariance).squeeze(-2))
        return torch.stack(outputs, dim=1).flatten(2).to(projected.dtype)

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        return parallax_backend(device, dtype, self.head_dim, self.backend)
