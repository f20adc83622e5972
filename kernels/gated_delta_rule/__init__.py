"""The gated delta rule (Gated DeltaNet, Yang, Kautz, Hatamizadeh 2024), differentiable in every input."""

import math

import torch
from torch import Tensor

from kernels.dispatch import resolve_backend
from kernels.gated_delta_rule.reference import gated_delta_rule_reference

__all__ = ["gated_delta_rule"]

TRITON_HEAD_DIMS = (16, 32, 64, 128)


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

    The recurrence of Gated DeltaNet (arXiv 2412.06464, section 3). The keys should have unit norm: then each
    step shrinks what the state holds along `k_t` by `1 - beta_t`, and the state stays bounded.

    Args:
        q, k, v: `[B, T, H, D]`, float32 or bfloat16 (the reference takes float64 too).
        log_decay: `log g_t <= 0`, `[B, T, H]`, at least float32.
        beta: step size in [0, 1], `[B, T, H]`, at least float32.
        scale: multiplies the output; `1 / sqrt(D)` where None.
        chunk_size: positions that are solved together. It changes the speed, not the function.
        backend: `auto`, `reference` (PyTorch, any device) or `triton`.

    Returns:
        `[B, T, H, D]` in the dtype of `v`. Sums are in float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes that do not fit, a bad scale or chunk size, or a backend that cannot run.
    """
    _check_shapes(q, k, v, log_decay, beta)
    head_dim = q.shape[-1]
    scale = head_dim**-0.5 if scale is None else float(scale)
    if not math.isfinite(scale):
        raise ValueError(f"scale={scale} is not a finite number")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1")
    why = _why_not_triton(q, chunk_size)
    if resolve_backend(backend, q.device, supported=not why, why=why) == "triton":
        from kernels.gated_delta_rule.triton_op import gated_delta_rule_triton

        return gated_delta_rule_triton(q, k, v, log_decay, beta, scale, chunk_size)
    return gated_delta_rule_reference(q, k, v, log_decay, beta, scale, chunk_size)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor) -> None:
    if q.dim() != 4 or 0 in q.shape:
        raise ValueError(f"q has shape {tuple(q.shape)}: it must be [B, T, H, D], none of them 0")
    for name, tensor, shape in (
        ("k", k, q.shape),
        ("v", v, q.shape),
        ("log_decay", log_decay, q.shape[:3]),
        ("beta", beta, q.shape[:3]),
    ):
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: q asks for {tuple(shape)}")


def _why_not_triton(q: Tensor, chunk_size: int) -> str:
    """Empty where the kernel can run, else the reason."""
    if q.shape[-1] not in TRITON_HEAD_DIMS:
        return f"the head size is {q.shape[-1]}, and the kernel takes {TRITON_HEAD_DIMS}"
    if chunk_size not in (16, 32, 64):
        return f"chunk_size is {chunk_size}, and the kernel takes 16, 32 or 64"
    if q.dtype not in (torch.float32, torch.bfloat16):
        return f"q is {q.dtype}, and the kernel takes float32 and bfloat16"
    return ""
