"""Rotary position embedding (Su et al. 2021, RoFormer) in one launch; the gradient is the opposite rotation."""

import torch
from torch import Tensor

from kernels.dispatch import resolve_backend
from kernels.fused.operators import why_not_triton


def rotary(x: Tensor, inverse_frequency: Tensor, *, backend: str = "auto") -> Tensor:
    """Rotates the pairs `(x_i, x_{i + D/2})` at position t by the angle `t * inverse_frequency_i`.

    Args:
        x: `[B, T, H, D]`, D even; in the kernel any strides with a unit one last, such as a part of a packed
            projection.
        inverse_frequency: float32 `[D / 2]`, radians per position; no gradient, and the same for all replicas.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, angles and arithmetic in
            float32).

    Returns:
        `[B, T, H, D]` in the dtype of `x`, contiguous.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    if x.ndim != 4 or inverse_frequency.ndim != 1 or x.shape[3] != 2 * inverse_frequency.shape[0]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and inverse_frequency {tuple(inverse_frequency.shape)}: pass"
            " x [B, T, H, D] and inverse_frequency [D / 2]"
        )
    why = why_not_triton(x)
    if inverse_frequency.dtype != torch.float32:
        why = f"the kernel takes a float32 inverse_frequency, not {inverse_frequency.dtype}"
    if resolve_backend(backend, x.device, supported=not why, why=why) == "reference":
        return _reference(x, inverse_frequency)
    return rotate(x, inverse_frequency, 1.0)


def _reference(x: Tensor, inverse_frequency: Tensor) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    positions = torch.arange(x.shape[1], device=x.device, dtype=wide)
    angles = positions[:, None, None] * inverse_frequency.to(wide)  # [T, 1, D / 2]
    cos, sin = angles.cos(), angles.sin()
    first, second = x.to(wide).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


@torch.library.custom_op("mixerlab::rotary", mutates_args=())
def rotate(x: Tensor, inverse_frequency: Tensor, direction: float) -> Tensor:
    """`rotary` with all angles times `direction`, 1 or -1."""
    from kernels.fused import triton_rotary  # only where it runs: Triton is optional

    return triton_rotary.rotate(x, inverse_frequency, direction)


@rotate.register_fake
def _(x, inverse_frequency, direction):
    return x.new_empty(x.shape)


def _save(ctx, inputs, output):
    _, inverse_frequency, ctx.direction = inputs
    ctx.save_for_backward(inverse_frequency)


def _gradients(ctx, grad):
    # A rotation is linear: its gradient is the operator itself, and can be differentiated again.
    return rotate(grad, *ctx.saved_tensors, -ctx.direction), None, None


def _fold(info, in_dims, x, inverse_frequency, direction):
    """Replicas fold into the batch; they share the frequencies."""
    dim, frequency_dim, _ = in_dims
    assert dim is not None, "a vmap over nothing"
    if frequency_dim is not None:
        raise ValueError("inverse_frequency has a replica axis: pass one [D / 2] for all replicas")
    x = x.movedim(dim, 0)
    return rotate(x.flatten(0, 1), inverse_frequency, direction).unflatten(0, x.shape[:2]), 0


rotate.register_autograd(_gradients, setup_context=_save)
rotate.register_vmap(_fold)
