"""The parts that a packed projection is split into, as arguments and as what an operator takes."""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

UNIT_NORM_EPS = 1e-6


class Form(IntEnum):
    """What becomes of a part."""

    VIEW = 0  # a view of its columns: nothing runs
    COPY = 1  # its columns, made contiguous if the kernel runs
    ROTARY = 2  # the pairs of each head rotated by their position
    UNIT_NORM = 3  # `x / sqrt(|x|^2 + 1e-6)` of each head
    RMS_NORM = 4  # `x / sqrt(mean(x^2) + eps) * gain` of each head; the heads of a part share its gain
    RMS_NORM_ROTARY = 5  # such a norm, then the rotation, without rounding in between

    @property
    def has_gain(self) -> bool:
        return self in (Form.RMS_NORM, Form.RMS_NORM_ROTARY)

    @property
    def rotates(self) -> bool:
        return self in (Form.ROTARY, Form.RMS_NORM_ROTARY)


class Part(NamedTuple):
    """The next `heads * width` columns."""

    heads: int
    width: int
    form: Form = Form.VIEW


def columns_of(parts: Sequence[Part]) -> int:
    """How many columns the parts have together."""
    return sum(part.heads * part.width for part in parts)


def views(packed: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """The columns of each part, `[B, T, heads, width]`."""
    rest = packed.shape[-1] - columns_of(parts)
    *columns, _ = packed.split([*(part.heads * part.width for part in parts), rest], dim=-1)
    return [x.unflatten(-1, part[:2]) for x, part in zip(columns, parts, strict=True)]


def with_views(results: Sequence[Tensor], packed: Tensor, parts: Sequence[Part]) -> tuple[Tensor, ...]:
    """All parts of `packed`: an operator's `results`, and in their places the views, which it cannot return."""
    rest = iter(results)
    return tuple(
        x if part.form == Form.VIEW else next(rest) for x, part in zip(views(packed, parts), parts, strict=True)
    )


def numbers_of(parts: Sequence[Part]) -> list[int]:
    """The parts as an operator takes them, which knows lists of integers only: heads, width and form of each."""
    return [int(number) for part in parts for number in part]


def parts_of(numbers: list[int]) -> list[Part]:
    """The inverse of `numbers_of`."""
    return [Part(h, w, Form(f)) for h, w, f in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)]
