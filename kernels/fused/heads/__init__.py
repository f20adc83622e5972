"""A packed projection split into heads, each rotated or normed on the way: one launch, and one for the gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_traced, why_not_triton
from mixerlab.kernels.fused.heads.parts import UNIT_NORM_EPS, Form, Part, columns_of, views
from mixerlab.kernels.fused.linear import join_rows
from mixerlab.kernels.fused.rms_norm import wide_rms_norm


def split_heads(
    packed: Tensor,
    parts: Sequence[Part],
    inverse_frequency: Tensor | None = None,
    gains: Sequence[Tensor] = (),
    eps: float = 0.0,
    *,
    start: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """The parts of `packed`, side by side from its first column on, each in its form.

    Slices would give the same, but autograd pads the gradient of each slice to the width of `packed` and adds them up.
    Here one launch reads the gradients of all parts, takes them back through rotation and norm, and writes the gradient
    of `packed`. With gains, a second launch adds up the parts of their gradients.

    Args:
        packed: `[B, T, C]`; the kernel takes any strides whose last is one.
        parts: together at most C columns. Those after them are padding, with gradient zero.
        inverse_frequency: float32 `[D / 2]`, radians per position, for all parts that are rotated and all replicas;
            without a gradient. The pairs `(x_i, x_{i + D/2})` of a head at position t are rotated by
            `t * inverse_frequency_i` (Su et al. 2021, RoFormer).
        gains: `[width]` for each RMS-normed part, in their order; these parts have heads of one width. If the gains are
            neighbours in memory, they are read where they are (`join_rows`); else they are copied first.
        eps: added to the mean square of RMS-normed heads; above 0 if there are any.
        start: `[B]`, the position of the first row of each sequence, for PyTorch only; 0 by default.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, arithmetic in float32).
            `torch.compile` gets PyTorch, which it fuses by itself.

    Returns:
        One `[B, T, heads, width]` for each part, in the dtype of `packed`. The kernel's are contiguous, but for `VIEW`,
        and parts of one tensor: autograd refuses to change one in place.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    parts = tuple(parts)
    columns = columns_of(parts)
    if packed.ndim != 3 or columns > packed.shape[-1]:
        raise ValueError(f"packed has shape {tuple(packed.shape)}: pass [B, T, C] with the parts' {columns} columns")
    for part in parts:
        if part.form.rotates and (inverse_frequency is None or 2 * inverse_frequency.numel() != part.width):
            given = None if inverse_frequency is None else tuple(inverse_frequency.shape)
            raise ValueError(f"inverse_frequency has shape {given}: heads of {part.width} need ({part.width / 2:g},)")
    _check_gains(gains, parts, eps)
    why = why_not_traced() or why_not_triton(packed, *gains)
    if inverse_frequency is not None and inverse_frequency.dtype != torch.float32:
        why = f"the kernel takes a float32 inverse_frequency, not {inverse_frequency.dtype}"
    if start is not None:
        why = "the kernel counts positions from 0"
    if resolve_backend(backend, packed.device, why) == "reference":
        return _reference(packed, parts, inverse_frequency, gains, eps, start)
    from mixerlab.kernels.fused.heads.operator import Split  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    joined = join_rows(*(gain[None] for gain in gains))[None] if gains else None
    return Split.apply(packed, inverse_frequency, joined, eps, parts)


def rotary_heads(
    packed: Tensor,
    num_heads: int | Sequence[int],
    inverse_frequency: Tensor,
    rotated: Sequence[bool],
    gains: Sequence[Tensor | None] | None = None,
    eps: float = 0.0,
    *,
    start: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """The parts of `packed`, one for each of `rotated`: `[B, T, num_heads, D]`, rotated if it says so.

    Args:
        num_heads: of all parts, or of each.
        gains: for each part None, or `[D]`: RMSNorm of its heads with this gain, before the rotation. Without `gains`
            no part is normed.

    The other arguments and the errors are those of `split_heads`.
    """
    width = 2 * inverse_frequency.shape[0]
    gains = [None] * len(rotated) if gains is None else gains
    num_heads = [num_heads] * len(rotated) if isinstance(num_heads, int) else num_heads
    forms = {
        (False, False): Form.VIEW,
        (True, False): Form.ROTARY,
        (False, True): Form.RMS_NORM,
        (True, True): Form.RMS_NORM_ROTARY,
    }
    parts = [
        Part(heads, width, forms[rotates, gain is not None])
        for heads, rotates, gain in zip(num_heads, rotated, gains, strict=True)
    ]
    given = [gain for gain in gains if gain is not None]
    return split_heads(packed, parts, inverse_frequency, given, eps, start=start, backend=backend)


def _check_gains(gains: Sequence[Tensor], parts: Sequence[Part], eps: float) -> None:
    normed = [part.width for part in parts if part.form.has_gain]
    if [tuple(gain.shape) for gain in gains] != [(width,) for width in normed] or len(set(normed)) > 1:
        raise ValueError(
            f"gains have shapes {[tuple(gain.shape) for gain in gains]} for RMS-normed heads of {normed}: pass one"
            " [width] for each of these parts, all of one width"
        )
    if normed and not eps > 0:
        raise ValueError(f"eps={eps}: pass a number above 0 for the RMS-normed parts")


def _reference(
    packed: Tensor,
    parts: Sequence[Part],
    inverse_frequency: Tensor | None,
    gains: Sequence[Tensor],
    eps: float,
    start: Tensor | None,
) -> tuple[Tensor, ...]:
    remaining, results = iter(gains), []
    for part, x in zip(parts, views(packed, parts), strict=True):
        y = x
        if part.form == Form.UNIT_NORM:
            y = unit_norm(x)
        if part.form.has_gain:
            y = wide_rms_norm(x, next(remaining), eps)
        if part.form.rotates:
            assert inverse_frequency is not None  # `split_heads` has checked it
            y = _rotated(y, inverse_frequency, start)
        results.append(y.to(x.dtype))
    return tuple(results)


def unit_norm(x: Tensor) -> Tensor:
    """`x / sqrt(|x|^2 + 1e-6)` over the last axis, in the dtype of `x`, in PyTorch.

    Through the mean square, which is `|x|^2 / width`.
    """
    width, dtype = x.shape[-1], torch.promote_types(x.dtype, torch.float32)
    gain = torch.full((width,), width**-0.5, dtype=dtype, device=x.device)
    return wide_rms_norm(x, gain, UNIT_NORM_EPS / width).to(x.dtype)


def _rotated(x: Tensor, inverse_frequency: Tensor, start: Tensor | None) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    positions = torch.arange(x.shape[1], device=x.device, dtype=wide)
    if start is not None:
        positions = start[:, None] + positions
    angles = positions[..., None, None] * inverse_frequency.to(wide)  # [T, 1, D / 2], or with a batch before it
    cos, sin = angles.cos(), angles.sin()
    first, second = x.to(wide).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
