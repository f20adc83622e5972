"""Which tensors a kernel can read as they lie, and copies of the others."""

import math

from torch import Tensor

OFFSETS = 2**31  # how many a signed 32-bit number counts from zero


def unit_stride(x: Tensor) -> Tensor:
    """`x`, copied where its last stride is not one: for a kernel that takes the other axes in 64-bit offsets."""
    return x if x.stride(-1) == 1 else x.contiguous()


def whole_rows(x: Tensor) -> Tensor:
    """`x` `[groups, N, D]` with the rows of a group one after another; groups may be any step apart."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def addressable(x: Tensor) -> Tensor:
    """`x` for a kernel with 64-bit offsets along the leading axis and 32-bit ones inside one element of it.

    32 bits are what a product of a position and a stride has in a kernel, and they wrap around silently. A view with
    time in front of the batch steps over the whole batch from one position to the next, and needs more of them.

    Args:
        x: `[N, ...]`, two axes or more, any dtype and strides.

    Returns:
        `x` itself where its last stride is one and those offsets fit; else a contiguous copy.

    Raises:
        ValueError: one element has more numbers than 2^31, so that neither a copy nor a result of its shape fits.
    """
    inner = x.shape[1:]
    if math.prod(inner) > OFFSETS:
        raise ValueError(
            f"a tensor has shape {tuple(x.shape)}: the kernel takes at most {OFFSETS} numbers for each of the leading"
            f" {x.shape[0]}; shorten the sequences or choose backend='reference'"
        )
    farthest = sum((size - 1) * step for size, step in zip(inner, x.stride()[1:], strict=True))
    return unit_stride(x) if farthest < OFFSETS else x.contiguous()
