"""The order and the looks of mixers, tasks and settings, the same in every table and figure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

MIXERS = ("attn", "parallax", "gdn", "mamba", "mesa")
TASKS: tuple[str, ...] = ("icr", "ncr", "fcr", "mem", "cmp", "sc", "icr_challenge", "ncr_challenge", "sc_challenge")
TASKS += ("icr_vocab_challenge", "ncr_vocab_challenge")
BASELINE = "baseline"

SEES_FUTURE = " ‡"  # after the name of a mixer that does

_NUMBER = re.compile(r"((?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_PARAMETER = re.compile(r"[a-z]+(?:_[a-z0-9]+)*")  # the first word without digits: `s3-128` is a level too
# Okabe and Ito's colours, which readers with colour-blindness tell apart, then others for mixers to come.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
_MORE_COLOURS = (
    "#56B4E9", "#882255", "#8A8A1E", "#111111", "#F2D13C", "#7B4FD0", "#8C5A2B", "#FF6F91", "#8F8F8F", "#66D0B8",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v")
_MORE_MARKERS = ("P", "*", "X", "<", ">", "h", "p", "d", "8", "H", "o")
# Of bars, for readers without colours; the first of each list is plain.
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx")
_MORE_HATCHES = ("----", "||||", "++++", "oooo", "////....", "\\\\\\\\....", "----....", "||||....", "OO", "**", "xx--")


@dataclass(frozen=True)
class Style:
    """How a column of the tables is drawn."""

    colour: str
    marker: str
    hatch: str


def styles(columns: Iterable[str]) -> dict[str, Style]:
    """One style per column: fixed for the known mixers, the next free one for others in alphabetical order.

    The columns of one mixer, `attn, d_model=64` and `attn, d_model=128`, share its hue, from light to dark, and differ
    in markers and hatches. If there is only one mixer, they have colours of their own.
    """
    names = in_order(columns, MIXERS)
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(mixer_of(name), []).append(name)
    if len(families) == 1 and len(names) > 1:
        return dict(zip(names, map(_nth, range(len(names))), strict=True))
    result, others = {}, len(MIXERS)
    for mixer, members in families.items():
        if mixer in MIXERS:
            place = MIXERS.index(mixer)
        else:
            place, others = others, others + 1
        style = _nth(place)
        for number, name in enumerate(members):
            shade = _shade(style.colour, number / (len(members) - 1)) if len(members) > 1 else style.colour
            # With several columns of one mixer, those of the mixers would not suffice.
            other = _nth(names.index(name)) if len(names) > len(families) else style
            result[name] = Style(shade, other.marker, other.hatch)
    return {name: result[name] for name in names}


def _nth(place: int) -> Style:
    if place < len(MIXERS):
        return Style(_COLOURS[place], _MARKERS[place], _HATCHES[place])
    place -= len(MIXERS)
    kinds = _MORE_COLOURS, _MORE_MARKERS, _MORE_HATCHES
    return Style(*(kind[place % len(kind)] for kind in kinds))


def _shade(colour: str, share: float) -> str:
    """From a light tint of the colour (0) to a dark shade of it (1)."""
    parts = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    mixed = [part + (255 - part) * (0.6 - 1.2 * share) if share < 0.5 else part * (1.6 - 1.2 * share) for part in parts]
    return "#" + "".join(f"{round(part):02X}" for part in mixed)


def mixer_of(column: str) -> str:
    """The mixer that a column of the tables is about: `attn` of `attn, d_model=64`."""
    return column.partition(", ")[0].removesuffix(SEES_FUTURE)


def in_order(names: Iterable[str], known: tuple[str, ...]) -> list[str]:
    """Distinct `names`: the `known` ones in their order, then the others alphabetically."""
    return sorted(set(names), key=lambda name: rank(name, known))


def sees_future(column: str) -> bool:
    """Whether a column of the tables is of a mixer that may see the tokens that it predicts."""
    return column.partition(", ")[0].endswith(SEES_FUTURE)


def rank(name: str, known: tuple[str, ...]) -> tuple:
    """Sort key of one name in the order of `in_order`; what follows the mixer of a column counts by its numbers."""
    first = mixer_of(name)
    place = known.index(first) if first in known else len(known)
    parts = _NUMBER.split(name)  # text and numbers in turn
    return (place, *(float(part) if i % 2 else part for i, part in enumerate(parts)))


def is_challenge(task: str) -> bool:
    """Whether a task belongs to the harder set, which has a table of its own and no part in the average."""
    return task.endswith("_challenge")


def is_custom(setting: str) -> bool:
    """Whether a setting is of the user's own making, `seq_len=64,vocab_size=8`, and no named one, `seq_len-64`."""
    return "=" in setting


def axis_of(setting: str) -> tuple[str, float] | None:
    """`("seq_len", 512.0)` for `seq_len-512` or `seq_len=512`; None for the baseline and for names of another form.

    The name must be written as a task's parameters are, in words of lower case: a level such as `S3-128` is no axis.

    Test rows of another length are an axis of each setting: `("S3-128,test_seq_len", 256.0)` for
    `S3-128,test_seq_len=256`.
    """
    origin, comma, last = setting.rpartition(",")
    axis, _, value = last.replace("=", "-").rpartition("-")
    if _PARAMETER.fullmatch(axis) is None or (comma and axis != "test_seq_len"):
        return None
    try:
        return f"{origin}{comma}{axis}", float(value)
    except ValueError:
        return None


def origin_of(axis: str) -> tuple[str, str]:
    """The setting from which an axis departs, and the key that changes: `("S3-128", "test_seq_len")`."""
    origin, _, key = axis.rpartition(",")
    return origin or BASELINE, key


def other_test_length(setting: str) -> tuple[str, int] | None:
    """The setting and the length of test rows, if that is not the length of training: `("S3-128", 256)`."""
    name, comma, swept = setting.partition(", ")  # the values of swept keys
    axis = axis_of(name)
    if axis is None or origin_of(axis[0])[1] != "test_seq_len":
        return None
    return f"{origin_of(axis[0])[0]}{comma}{swept}", int(axis[1])


def setting_rank(setting: str) -> tuple:
    """Sort key of a setting: the baseline, then axis by axis by value, then others by their numbers.

    Test rows of another length stand behind the level that they are of.
    """
    if setting == BASELINE:
        return (0,)
    axis = axis_of(setting)
    if axis is not None and axis_of(setting.partition(",")[0]) is not None:
        return (1, *axis)
    parts = re.split(r"(\d+)", setting)  # text and numbers in turn
    return (2, *(int(part) if i % 2 else part for i, part in enumerate(parts)))
