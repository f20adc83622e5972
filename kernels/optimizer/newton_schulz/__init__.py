"""Orthogonalises many matrices at once by the Newton-Schulz iteration of Muon (Jordan et al. 2024)."""

from math import prod

import torch
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend
from mixerlab.kernels.optimizer.newton_schulz.reference import orthogonalise_reference

MAX_SHORT_SIDE = 128  # the kernel holds a Gram matrix of this width on chip


def orthogonalise(
    flat: Tensor,
    shapes: tuple[tuple[int, int], ...],
    steps: int = 5,
    *,
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> Tensor:
    """Approximate polar factors `U V^T` of matrices `U S V^T`.

    With 5 steps the larger singular values are 0.68 to 1.14.

    Args:
        flat: float32 `[R, P]`, with unit stride in a row. Each row holds matrices of `shapes`, row-major, one after
            another.
        shapes: (rows, columns) of the matrices in a row, the same in every row.
        steps: iterations, at least one.
        dtype: of the operands of products, float32 or bfloat16; sums are in float32. By default bfloat16 on a GPU and
            float32 on a CPU.
        backend: `auto`, `reference` (PyTorch) or `triton`: one launch for each step, for all matrices. Its shorter
            sides are at most 128, and on a GPU it takes only bfloat16.

    Returns:
        `[R, P]`, laid out like `flat`.

    Raises:
        ValueError: `flat`, `steps` or `dtype` does not fit, or a backend that cannot run here.
    """
    width = sum(map(prod, shapes))
    if flat.dtype != torch.float32 or flat.ndim != 2 or flat.shape[1] != width or flat.stride(1) != 1:
        raise ValueError(
            f"flat is {flat.dtype} {tuple(flat.shape)} with strides {flat.stride()}: pass float32 [R, {width}]"
            " with unit stride in a row, to fit shapes"
        )
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    if dtype is None:
        dtype = torch.bfloat16 if flat.is_cuda else torch.float32
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype={dtype}: choose float32 or bfloat16")
    why = _why_not_triton(flat, shapes, dtype)
    if resolve_backend(backend, flat.device, why) == "reference":
        return orthogonalise_reference(flat, shapes, steps, dtype)
    from mixerlab.kernels.optimizer.newton_schulz.operator import polar_factors  # here, because Triton is optional

    return polar_factors(flat, [side for shape in shapes for side in shape], steps, dtype)


def _why_not_triton(flat: Tensor, shapes: tuple[tuple[int, int], ...], dtype: torch.dtype) -> str:
    """Why the Triton kernel does not take these; empty if it does."""
    if not shapes:
        return "there are no matrices"
    short_side = max(map(min, shapes))
    if short_side > MAX_SHORT_SIDE:
        return f"the kernel takes matrices whose shorter side is at most {MAX_SHORT_SIDE}, not {short_side}"
    if flat.is_cuda and dtype != torch.bfloat16:
        return f"on a GPU the kernel takes dtype bfloat16, not {dtype}"
    return ""
