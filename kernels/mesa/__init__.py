"""The mesa layer (MesaNet, von Oswald et al. 2025): linear attention through ridge regression."""

import torch
from torch import Tensor

from kernels.dispatch import resolve_backend
from kernels.mesa.reference import mesa_reference

__all__ = ["mesa"]

TRITON_HEAD_DIMS = (16, 32, 64, 128)


def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    ridge: Tensor,
    *,
    iterations: int = 30,
    chunk_size: int = 64,
    backend: str = "auto",
) -> Tensor:
    """`o_t = G_t (H_t + diag(ridge))^{-1} q_t`: the best linear map from keys to values so far, at `q_t`.

    `H_t = g_t H_{t-1} + beta_t k_t k_t^T` and `G_t = g_t G_{t-1} + beta_t v_t k_t^T`, both 0 before the first
    position (arXiv 2506.05233, the mesa layer with forgetting). The systems are solved by `iterations` steps
    of conjugate gradients from zero; the backward solves for the adjoint in the same way (implicit
    differentiation), so that its memory does not grow with the number of steps.

    Args:
        q, k, v: `[B, T, H, D]`, float32 or bfloat16 (the reference takes float64 too). Unit-norm keys keep
            the systems well conditioned.
        log_decay: `log g_t <= 0`, `[B, T, H]`, at least float32.
        beta: weight of a position, in [0, 1], `[B, T, H]`, at least float32.
        ridge: positive, `[H, D]`, at least float32.
        iterations: steps of conjugate gradients; D steps solve exactly but for rounding.
        chunk_size: positions that are handled together. It changes the speed, not the function.
        backend: `auto`, `reference` (PyTorch, any device) or `triton`.

    Returns:
        `[B, T, H, D]` in the dtype of `v`. Sums are in float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes that do not fit, fewer than one step, or a backend that cannot run.
    """
    _check_shapes(q, k, v, log_decay, beta, ridge)
    if iterations < 1:
        raise ValueError(f"iterations={iterations} must be at least 1")
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} must be at least 1")
    why = _why_not_triton(q, chunk_size)
    if resolve_backend(backend, q.device, supported=not why, why=why) == "triton":
        from kernels.mesa.triton_op import mesa_triton

        return mesa_triton(q, k, v, log_decay, beta, ridge, iterations, chunk_size)
    return mesa_reference(q, k, v, log_decay, beta, ridge, iterations, chunk_size)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, ridge: Tensor) -> None:
    if q.dim() != 4 or 0 in q.shape:
        raise ValueError(f"q has shape {tuple(q.shape)}: it must be [B, T, H, D], none of them 0")
    for name, tensor, shape in (
        ("k", k, q.shape),
        ("v", v, q.shape),
        ("log_decay", log_decay, q.shape[:3]),
        ("beta", beta, q.shape[:3]),
        ("ridge", ridge, q.shape[2:]),
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
