"""The gated delta rule (Gated DeltaNet, Yang, Kautz, Hatamizadeh 2024), differentiable in every input."""

import torch
from torch import Tensor

from mixerlab.kernels.common.chunked import check_inputs, choose_backend, pad_heads
from mixerlab.kernels.gated_delta_rule.reference import gated_delta_rule_reference


def gated_delta_rule(
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
    """`o_t = scale S_t q_t` with `S_t = g_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T`, `S_0 = 0`.

    This is the recurrence of Gated DeltaNet (arXiv 2412.06464, section 3), and without decay that of DeltaNet. The keys
    should have unit norm. Then each step multiplies the part of the state along `k_t` by `1 - beta_t`, and the state
    stays bounded.

    Args:
        q, k: `[B, T, H, D]`, float32 or bfloat16 (the reference takes float64 too).
        v: `[B, T, HV, D]`, in the dtype of q. HV is a multiple of H: value head h goes with key head `h // (HV / H)`.
        log_decay: `log g_t <= 0`, `[B, T, H]`, at least float32.
        beta: step size in [0, 2], `[B, T, H]`, at least float32.
        scale: multiplies the output; `1 / sqrt(D)` by default.
        chunk_size: positions that are solved together. It changes the speed, but not the function.
        backend: `auto`, `reference` (PyTorch, any device) or `triton`.

    Returns:
        Like v. Sums are in float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes or dtypes that do not fit, or a backend that cannot run.
    """
    check_inputs(q, k, v, log_decay, beta, grouped=True)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if gated_delta_rule_backend(q.device, q.dtype, q.shape[-1], chunk_size, backend) == "reference":
        return gated_delta_rule_reference(q, k, v, log_decay, beta, scale, chunk_size)

    from mixerlab.kernels.gated_delta_rule.operator import forward  # here, because Triton is optional

    head_dim = q.shape[-1]
    q, k, v = map(pad_heads, (q, k, v))  # the added columns stay zero and change nothing
    return forward(q, k, v, log_decay.float(), beta.float(), scale, chunk_size)[0][..., :head_dim]


def gated_delta_rule_backend(
    device: torch.device, dtype: torch.dtype, head_dim: int, chunk_size: int = 64, backend: str = "auto"
) -> str:
    """The backend that `gated_delta_rule` takes for such inputs: `reference` or `triton`."""
    return choose_backend(device, dtype, head_dim, chunk_size, backend)
