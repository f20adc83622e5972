"""RMSNorm (Zhang and Sennrich 2019), with or without the residual addition before it, in one launch each way."""

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import default_dtype
from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.common.shapes import check_shapes

MAX_WIDTH = 1024  # a row is one tile of the kernel


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, backend: str = "auto") -> Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis.

    Args:
        x: `[..., D]`; D up to 1024 in the kernel.
        weight: `[D]`.
        eps: added to the mean square.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, arithmetic in float32).

    Returns:
        `[..., D]`, in autocast's dtype if autocast is on, else in that of `x`.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    if _backend(backend, x, weight) == "reference":
        return wide_rms_norm(x, weight, eps).to(default_dtype(x))
    from mixerlab.kernels.fused.rms_norm.operator import norm  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    return norm(x.reshape(1, -1, x.shape[-1]), weight[None], eps, default_dtype(x)).view(x.shape)


def add_rms_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, eps: float, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """`s = x + y` in the wider of their dtypes, and `rms_norm(s, weight, eps)`; the other arguments are as there.

    `x` and `y` have the same shape; without `y` the sum is `x` itself. The backward is one launch too: it adds up the
    gradient that reaches `s` through the norm and the one that reaches it past the norm.
    """
    if y is not None:
        check_shapes(("y", y, x.shape), fitting=f"x {tuple(x.shape)}")
    out_dtype = default_dtype(x)
    if _backend(backend, x, weight, *(() if y is None else (y,))) == "reference":
        total = x if y is None else x + y
        return total, wide_rms_norm(total, weight, eps).to(out_dtype)
    from mixerlab.kernels.fused.rms_norm.operator import InputAndNorm, add_norm

    rows = (1, -1, x.shape[-1])
    if y is None:
        total, normed = InputAndNorm.apply(x.reshape(rows), weight[None], eps, out_dtype)
    else:
        total, normed = add_norm(x.reshape(rows), y.reshape(rows), weight[None], eps, out_dtype)
    return total.view(x.shape), normed.view(x.shape)


def _backend(backend: str, x: Tensor, weight: Tensor, *others: Tensor) -> str:
    check_shapes(("weight", weight, x.shape[-1:]), fitting=f"x {tuple(x.shape)}")
    why = why_not_triton(x, weight, *others)
    if x.shape[-1] > MAX_WIDTH:
        why = f"the kernel takes rows of at most {MAX_WIDTH}, not {x.shape[-1]}"
    return resolve_backend(backend, x.device, why)


def wide_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in PyTorch, in float32, or float64 for float64."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
