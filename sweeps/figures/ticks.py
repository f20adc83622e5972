"""Ticks of the panels of a figure: at the values that were run, with labels that do not touch.

`inches` is the width of a panel.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from mixerlab.sweeps.figures.canvas import TICK, text_width
from mixerlab.sweeps.figures.labels import told_apart


def value_ticks(panel: Axes, values: Sequence[float], inches: float) -> None:
    """Every value that was run is a tick; counts grow by factors, shares by steps."""
    if values and min(values) > 0 and max(values) >= 4 * min(values):
        panel.set_xscale("log", base=2)
    _ticks(panel, values, [short_number(value) for value in values], inches)


def rate_ticks(panel: Axes, values: Sequence[float], inches: float) -> None:
    """Every learning rate that was run is a tick of a logarithmic axis."""
    panel.set_xscale("log")
    _ticks(panel, values, [rate_text(value) for value in values], inches)


def rate_text(value: float) -> str:
    """`5e-4` or `3.16e-4`."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def size_ticks(panel: Axes, values: Sequence[float], inches: float) -> None:
    """Of a logarithmic axis: its decades, or every value if it has less than two of them."""
    if not values:
        panel.set_xticks([])
        return
    low, high = min(values), max(values)
    pad = max(1.15, (high / low) ** 0.12)
    panel.set_xlim(low / pad, high * pad)
    decades = [10.0**power for power in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)]
    inside = [value for value in decades if low / pad <= value <= high * pad]
    places = inside if len(inside) > 1 else sorted(set(values))
    labels = [short_number(float(f"{value:.{4 if value < 1e4 else 3}g}")) for value in places]
    if len(inside) < 2:
        labels = _apart(labels, np.log(np.asarray(places) / low * pad) / np.log(high / low * pad**2) * inches)
    panel.xaxis.set_major_locator(FixedLocator(places))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xticklabels(labels)


def short_number(value: float) -> str:
    """The number with a letter for its size from 10,000 on: `4096`, `12.8k`, `1.5M`, `2G`."""
    for least, divisor, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / divisor:g}{letter}"
    return f"{value:g}"


def name_ticks(panel: Axes, places: Mapping[str, float], inches: float) -> None:
    """Every name is a tick at its place, shortened so that neighbours do not touch."""
    most = max(4, int(inches / len(places) / (0.55 * TICK / 72)))
    _ticks(panel, list(places.values()), told_apart(list(places), most), inches)


def _ticks(panel: Axes, values: Sequence[float], labels: Sequence[str], inches: float) -> None:
    """A tick at each value, with those labels that do not touch. The outer points keep off the edges."""
    panel.xaxis.set_major_locator(FixedLocator(values))
    panel.xaxis.set_minor_locator(NullLocator())
    if not values:
        return
    is_log = panel.get_xscale() == "log"
    places = np.log(values) if is_log else np.asarray(values, float)
    low, high = _limits(places)
    panel.set_xlim(*(np.exp((low, high)) if is_log else (low, high)))
    panel.set_xticklabels(_apart(labels, (places - low) / (high - low) * inches))


def axis_span(places: np.ndarray) -> float:
    """How long the axis is with ticks at `places`, in their unit: on a logarithmic axis they are logarithms."""
    low, high = _limits(places)
    return float(high - low)


def _limits(places: np.ndarray) -> tuple[float, float]:
    span = float(places.max() - places.min()) or 1.0
    return places.min() - 0.09 * span, places.max() + 0.09 * span


def _apart(labels: Sequence[str], at: np.ndarray) -> list[str]:
    """The labels, at these places in inches, without those that would touch others.

    Of evenly spaced ones every second, third, ... stays, counted from the last. Else the first and the last have
    priority, then the others from the left.
    """
    half = [text_width(label, TICK) / 2 for label in labels]

    def fits(number: int, others: Iterable[int]) -> bool:
        return all(abs(at[number] - at[other]) > half[number] + half[other] + 0.05 for other in others)

    kept: list[int] = []
    if len(at) > 2 and np.allclose(np.diff(at), at[1] - at[0]):
        strides = (list(range(len(labels) - 1, -1, -stride)) for stride in range(1, len(labels) + 1))
        kept = next(some for some in strides if all(fits(b, [a]) for a, b in pairwise(some)))
    else:
        for number in dict.fromkeys([0, len(labels) - 1, *range(len(labels))]):
            if fits(number, kept):
                kept.append(number)
    return [label if number in kept else "" for number, label in enumerate(labels)]


def loss_ticks(panel: Axes) -> None:
    """Ticks of a logarithmic axis whose limits are known: 1, 2 and 5 of a decade, or decades where there are many."""
    lowest, highest = panel.get_ylim()
    # Of several decades and parts of them, the locator would show none in so small a panel.
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if highest < 30 * lowest else (1,), numticks=6))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(NullLocator())
