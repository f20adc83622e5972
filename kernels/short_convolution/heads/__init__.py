"""The short convolution of a packed projection, split into the heads of a recurrence."""

from collections.abc import Sequence

from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_traced
from mixerlab.kernels.fused.heads import Form, Part, split_heads
from mixerlab.kernels.fused.heads.parts import columns_of
from mixerlab.kernels.short_convolution import short_convolution, why_not_kernel
from mixerlab.kernels.short_convolution.heads.parts import divided, normed

WIDEST_HEAD = 128  # a warp holds a row of a head in registers


def convolve_heads(
    packed: Tensor, weight: Tensor, parts: Sequence[Part], *, backend: str = "auto"
) -> tuple[Tensor, ...]:
    """`split_heads(packed, parts)`, with `short_convolution` applied to the first columns of `packed`.

    The convolved columns are read once, and written once as their parts. In the backward one launch takes the gradients
    of these parts through norm and convolution and writes their columns of the packed gradient. Another launch writes
    the columns of the other parts.

    Args:
        packed: `[B, T, C]`; the kernel takes any strides whose last is one.
        weight: `[channels, taps]`, for the first `channels` columns; the last tap is for the current position.
        parts: as `split_heads` takes them, but neither rotated nor RMS-normed. The first of them, with `channels`
            columns together, are convolved; they are `UNIT_NORM` or `COPY`.
        backend: `auto`, `reference` (PyTorch) or `triton`. The kernel takes float32 and bfloat16, at most 4 taps, and
            convolved parts of one width, those of unit norm first, with heads of at most 128. Otherwise `auto` runs
            `split_heads`, `short_convolution` and `split_heads` again.

    Returns:
        As `split_heads`. The kernel rounds a convolution only after its norm.

    Raises:
        ValueError: shapes or forms that do not fit, or a backend that cannot run here.
    """
    parts = tuple(parts)
    columns = columns_of(parts)
    if packed.ndim != 3 or columns > packed.shape[-1] or weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(
            f"packed has shape {tuple(packed.shape)} and weight {tuple(weight.shape)}: pass packed [B, T, C] with the"
            f" parts' {columns} columns and weight [channels, taps]"
        )
    convolved, others = divided(parts, weight.shape[0])
    if any(part.form not in (Form.UNIT_NORM, Form.COPY) for part in convolved):
        raise ValueError(f"the convolved parts are {convolved}: pass UNIT_NORM or COPY as their form")
    if any(part.form not in (Form.UNIT_NORM, Form.COPY, Form.VIEW) for part in others):
        raise ValueError(f"the other parts are {others}: pass UNIT_NORM, COPY or VIEW as their form")
    why = why_not_traced() or why_not_kernel(packed, weight) or _why_not_one_launch(convolved)
    if resolve_backend(backend, packed.device, why) == "triton":
        from mixerlab.kernels.short_convolution.heads.operator import Convolve  # here, because Triton is optional

        # One group of parameters; under vmap each replica is another.
        return Convolve.apply(packed, weight.float()[None], parts)
    mixed, *rest = split_heads(packed, (Part(1, weight.shape[0]), *others), backend=backend)
    mixed = short_convolution(mixed.flatten(-2), weight, backend=backend)
    return *split_heads(mixed, convolved, backend=backend), *rest


def _why_not_one_launch(convolved: Sequence[Part]) -> str:
    """Why the kernel does not give these parts; empty if it does."""
    if len({part.width for part in convolved}) > 1 or convolved[0].width > WIDEST_HEAD:
        return f"the kernel takes convolved parts of one width, heads of at most {WIDEST_HEAD}, not {convolved}"
    if any(part.form == Form.UNIT_NORM for part in convolved[normed(convolved) :]):
        return f"the kernel takes the convolved parts of unit norm first, not {convolved}"
    return ""
