"""Scores against what was varied: panels with a line for each column."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator
from matplotlib.transforms import offset_copy

from mixerlab.records.best import Selection
from mixerlab.sweeps.figures.marks import (
    CHANCE,
    MARKER,
    NO_SCORE,
    SEVERAL,
    SOLVED,
    caption,
    draw_spread,
    limit,
    line_handles,
    mark_handles,
)
from mixerlab.sweeps.figures.points import Point, score_name
from mixerlab.sweeps.figures.sheet import TICK, Layout, Sheet, figure_style, text_width
from mixerlab.sweeps.figures.styles import Style
from mixerlab.sweeps.tables.columns import Column

FEW = 8  # columns that can lie on each other and still be told apart
FRONTIER: dict[str, Any] = {"color": "0.75", "linewidth": 2.4, "solid_capstyle": "round"}

Points = Mapping[Column, Mapping[float, Point]]  # by column, then by place on the axis


@dataclass(frozen=True)
class Panel:
    """Scores along one axis.

    Attributes:
        points: by column, then by value on the axis.
        chance: by value on the axis; NaN where it is not known.
        names: of the values 0, 1, ... where these are places without a number.
        log: whether the axis is logarithmic however near the values are, as that of learning rates is.
        frontier: (value, score) of what no smaller value reaches.
    """

    title: str
    xlabel: str
    points: Points
    chance: Mapping[float, float] = field(default_factory=dict)
    names: Sequence[str] = ()
    log: bool = False
    frontier: Sequence[tuple[float, float]] = ()

    @property
    def values(self) -> list[float]:
        """All values that any column has, ascending."""
        return sorted(set(chain.from_iterable(self.points.values())))

    @property
    def all_points(self) -> list[Point]:
        return [point for along in self.points.values() for point in along.values()]


def draw_panels(
    panels: Sequence[Panel],
    look: Mapping[Column, Style],
    cells: pd.DataFrame,
    selection: Selection,
    what: str,
    layout: Layout,
    more: str = "",
    joined: bool = True,
) -> Figure | None:
    """A figure of these panels, without those that all columns solve; None if there are no panels.

    Args:
        panels: in their order.
        look: of the columns.
        cells: which the scores are of.
        selection: what chose them.
        what: the title, behind the name of the score.
        layout: how wide the figure is, and whether it has a heading.
        more: a part of its caption.
        joined: whether lines join the points of a column.
    """
    if not panels:
        return None
    score = score_name(cells)
    hard = [panel for panel in panels if score != "accuracy" or not _is_solved(panel)] or panels
    solved: dict[str, list[str]] = {}
    for panel in panels:
        if panel not in hard:
            solved.setdefault(panel.title, []).append(panel.xlabel.partition(" (")[0])
    sheet = Sheet(layout, len(hard))
    with figure_style():
        for axes, panel in zip(sheet.panels, hard, strict=True):
            _draw_lines(axes, panel, look, joined)
            limit(axes, score)
            _set_ticks(axes, panel, sheet.panel_width)
            axes.set_title(panel.title, pad=8 if any(point.mean is None for point in panel.all_points) else None)
            axes.set_xlabel(panel.xlabel)
        for axes in sheet.panels[:: sheet.columns]:
            axes.set_ylabel(score)
        points = list(chain.from_iterable(panel.all_points for panel in hard))
        chance = any(not np.isnan(level) for panel in hard for level in panel.chance.values())
        handles = [*line_handles(look, joined), *mark_handles(points, chance)]
        if any(panel.frontier for panel in hard):
            handles.append(Line2D([], [], label="Pareto frontier", **FRONTIER))
        named = ", ".join(f"{name} ({', '.join(axes)})" for name, axes in solved.items())
        named = f"not drawn, as all are above {SOLVED}: {named}" if named else ""
        told = caption(selection, points, more, named)
        return sheet.finish(f"{score.capitalize()} {what}", told, handles, height=0.95 if len(look) <= FEW else 1.4)


def _is_solved(panel: Panel) -> bool:
    return all(point.mean is not None and point.mean > SOLVED for point in panel.all_points)


def _draw_lines(axes: Axes, panel: Panel, look: Mapping[Column, Style], joined: bool) -> None:
    """A line through the means of each column; hollow, and off the line, where they are over fewer settings."""
    lacking = Counter(x for along in panel.points.values() for x, point in along.items() if point.mean is None)
    crowd = max(Counter(chain.from_iterable(panel.points.values())).values())  # columns with a point at one place
    above = offset_copy(axes.get_xaxis_transform(), axes.get_figure(), y=3, units="points")
    for number, column in enumerate(column for column in look if column in panel.points):
        along, style = panel.points[column], look[column]
        most = max(point.settings for point in along.values())
        # From large to small where few columns may lie on each other, so that all are seen.
        size = 1.4 - 0.8 * number / crowd if 1 < len(panel.points) / 2 < crowd <= FEW else 0.9
        xs = sorted(along)
        line = [along[x].mean if along[x].settings == most else np.nan for x in xs]
        axes.plot(xs, line, color=style.colour, linewidth=size**2, linestyle="-" if joined else "none")  # type: ignore[arg-type]
        for x in xs:
            point = along[x]
            if point.mean is None:
                colour = style.colour if lacking[x] == 1 else SEVERAL
                axes.plot(x, 1, color=colour, transform=above, clip_on=False, label="_none", **NO_SCORE)
            draw_spread(axes, x, point, style.colour, alpha=0.5)
        for whole in (True, False):
            drawn = [(x, along[x].mean) for x in xs if along[x].mean is not None and along[x].whole == whole]
            axes.plot(
                *(zip(*drawn, strict=True) if drawn else ([], [])), color=style.colour, linestyle="none",
                marker=style.marker, markersize=MARKER * style.enlarged * size, markerfacecolor=style.colour if whole else "white",
                markeredgecolor="white" if whole else style.colour, markeredgewidth=0.3 if whole else 0.8, zorder=4,
                label="_whole" if whole else "_incomplete",
            )  # fmt: skip
    if panel.frontier:
        axes.plot(*zip(*panel.frontier, strict=True), zorder=1, drawstyle="steps-post", label="_frontier", **FRONTIER)
    known = [(x, level) for x, level in sorted(panel.chance.items()) if not np.isnan(level)]
    if len(known) == 1:
        axes.axhline(known[0][1], zorder=1.5, label="_chance", **CHANCE)
    elif known:
        axes.plot(*zip(*known, strict=True), zorder=1.5, label="_chance", **CHANCE)


def _set_ticks(axes: Axes, panel: Panel, inches: float) -> None:
    """A tick at each value, with those labels that do not touch; counts and rates grow by factors, shares by steps."""
    values = panel.values
    if panel.log or (not panel.names and min(values) > 0 and max(values) >= 4 * min(values)):
        axes.set_xscale("log")
    places = np.log(values) if axes.get_xscale() == "log" else np.asarray(values, float)
    room = 0.09 * (places[-1] - places[0]) or 0.5
    low, high = places[0] - room, places[-1] + room
    axes.set_xlim(*(np.exp((low, high)) if axes.get_xscale() == "log" else (low, high)))
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    if panel.names:
        texts = [panel.names[int(value)] for value in values]
        crowded = sum(text_width(text, TICK) + 0.06 for text in texts) > inches
        axes.set_xticklabels(texts, rotation=90 if crowded else 0)
    else:
        texts = [short_number(value) for value in values]
        axes.set_xticklabels(_spaced(texts, (places - low) / (high - low) * inches))


def _spaced(texts: Sequence[str], at: np.ndarray) -> list[str]:
    """The texts at these places (inches), from the last on, without those that would touch the one kept before."""
    kept, edge = [""] * len(texts), np.inf
    for number in reversed(range(len(texts))):
        half = text_width(texts[number], TICK) / 2
        if at[number] + half + 0.04 < edge:
            kept[number], edge = texts[number], at[number] - half
    return kept


def short_number(value: float) -> str:
    """The number in few letters: `5e-4`, `0.2`, `4096`, `12.8k`, `1.5M`, `2G`."""
    if 0 < abs(value) < 0.1:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    for least, divisor, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / divisor:.3g}{letter}"
    return f"{value:.4g}"
