"""The delta rule with a decay for each channel of the keys (Kimi Delta Attention)."""

import torch
from torch import Tensor

from mixerlab.kernels.common.chunked import NARROW_HEAD_DIMS, check_inputs, choose_backend, pad_heads
from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.kimi_delta_rule.reference import kimi_delta_rule_reference


def kimi_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    chunk_size: int = 64,
    backend: str = "auto",
) -> Tensor:
    """`o_t = scale S_t q_t`, `S_t = S_{t-1} Diag(g_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T`, values by keys.

    Kimi Linear (arXiv 2510.26692), equation 1. With the same decay in all channels it is the gated delta rule.

    Args:
        q, k, v: `[B, T, H, D]`, float32 or bfloat16 (the reference takes float64 too).
        log_decay: `log g_t <= 0`, `[B, T, H, D]`, at least float32.
        beta: step size in [0, 2], `[B, T, H]`, at least float32.
        scale: multiplies the output; `1 / sqrt(D)` by default.
        chunk_size: positions that are solved together. It changes the speed, but not the function.
        backend: `auto`, `reference` (PyTorch, any device) or `triton`.

    Returns:
        `[B, T, H, D]` in the dtype of v. Sums are in float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes or dtypes that do not fit, or a backend that cannot run.
    """
    check_shapes(("log_decay", log_decay, q.shape), fitting="q")
    check_inputs(q, k, v, log_decay[..., 0], beta)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if kimi_delta_rule_backend(q.device, q.dtype, q.shape[-1], chunk_size, backend) == "reference":
        return kimi_delta_rule_reference(q, k, v, log_decay, beta, scale, chunk_size)

    from mixerlab.kernels.kimi_delta_rule.operator import forward  # here, because Triton is optional

    head_dim = q.shape[-1]
    q, k, v, log_decay = map(pad_heads, (q, k, v, log_decay))  # the added columns stay zero and change nothing
    return forward(q, k, v, log_decay.float(), beta.float(), scale, chunk_size)[0][..., :head_dim]


def kimi_delta_rule_backend(
    device: torch.device, dtype: torch.dtype, head_dim: int, chunk_size: int = 64, backend: str = "auto"
) -> str:
    """The backend that `kimi_delta_rule` takes for such inputs: `reference` or `triton`."""
    return choose_backend(device, dtype, head_dim, chunk_size, backend, NARROW_HEAD_DIMS)
