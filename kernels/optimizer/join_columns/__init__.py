"""Joins tensors of R rows side by side in one, as the gradients of a population."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton


def join_columns(parts: Sequence[Tensor], dtype: torch.dtype = torch.float32, *, backend: str = "auto") -> Tensor:
    """The rows of all `parts`, flattened and concatenated: `[R, P]` in `dtype`.

    Args:
        parts: each `[R, ...]`, with any floating-point dtype and any strides.
        dtype: of the result.
        backend: `auto`, `reference` (PyTorch) or `triton`: a launch for every 64 parts copies and casts, from float32
            or bfloat16 to float32. Parts whose rows are not contiguous are copied first.

    Raises:
        ValueError: no parts, parts with different numbers of rows, or a backend that cannot run here.
    """
    rows = {len(part) for part in parts}
    if len(rows) != 1:
        raise ValueError(f"the parts have shapes {[tuple(part.shape) for part in parts]}: pass [R, ...] with one R")
    why = why_not_triton(*parts)
    if dtype != torch.float32:
        why = f"the kernel gives float32, not {dtype}"
    if resolve_backend(backend, parts[0].device, why) == "reference":
        return torch.cat([part.reshape(len(part), -1).to(dtype) for part in parts], dim=1)
    from mixerlab.kernels.optimizer.join_columns import triton_kernels  # here, because Triton is optional

    return triton_kernels.joined(parts)
