"""Which tensors a kernel can read in place, and copies of the others."""

import math

import torch
from torch import Tensor

OFFSETS = 2**31  # values of a signed 32-bit offset from zero on


def unit_stride(x: Tensor) -> Tensor:
    """`x`, or a copy if its last stride is not one: for a kernel that addresses the other axes with 64 bits."""
    return x if x.stride(-1) == 1 else x.contiguous()


def whole_rows(x: Tensor) -> Tensor:
    """`x` `[groups, N, D]`, or a copy if each group is not contiguous. Groups may lie any distance apart."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()


def packed_heads(x: Tensor) -> Tensor:
    """`x` `[B, T, H, D]`, or a copy if its rows are not columns of one contiguous `[B, T, C]`."""
    _, length, _, width = x.shape
    of_batch, row, of_head, unit = x.stride()
    if unit == 1 and of_head == width and of_batch == length * row:
        return x
    return x.clone(memory_format=torch.contiguous_format)  # `contiguous` would leave a single position as it lies


def addressable(x: Tensor) -> Tensor:
    """`x`, or a copy, for a kernel with 64-bit offsets along the leading axis and 32-bit ones below it.

    In a kernel the product of a position and a stride has 32 bits, and wraps around silently. A view with time in
    front of the batch steps over the whole batch from one position to the next, which may need more.

    Args:
        x: `[N, ...]`, two axes or more, any dtype and strides.

    Returns:
        `x` itself if its last stride is one and those offsets fit; else a contiguous copy.

    Raises:
        ValueError: one entry of the leading axis has more than 2^31 elements, so that not even a copy fits.
    """
    inner = x.shape[1:]
    if math.prod(inner) > OFFSETS:
        raise ValueError(
            f"a tensor has shape {tuple(x.shape)}: the kernel takes at most {OFFSETS} elements for each of the leading"
            f" {x.shape[0]}; shorten the sequences or choose backend='reference'"
        )
    farthest = sum((size - 1) * step for size, step in zip(inner, x.stride()[1:], strict=True))
    return unit_stride(x) if farthest < OFFSETS else x.contiguous()
