"""Scores against what was varied: panels with a line for each column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator
from matplotlib.transforms import offset_copy

from mixerlab.records.best import NEAR_PERFECT
from mixerlab.records.names import AVERAGE
from mixerlab.sweeps.figures import marks
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.figures.sheet import TICK, Sheet, figure_style, text_width
from mixerlab.sweeps.figures.styles import Style
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.tables import Entry

FEW = 8  # columns that can lie on each other and still be told apart


@dataclass(frozen=True)
class Panel:
    """Scores along one axis.

    Attributes:
        points: entries by value on the axis and column; NaN where a column has none.
        chance: by value on the axis, NaN where it is not known; or for all values.
        names: of the values 0, 1, ... where these are places without a number.
        log: whether the axis is logarithmic however near the values are, as that of learning rates is.
    """

    title: str
    xlabel: str
    points: pd.DataFrame
    chance: pd.Series | float
    names: Sequence[str] = ()
    log: bool = False

    @property
    def entries(self) -> list[Entry]:
        return list(self.points.stack().dropna())


def draw_panels(
    scores: Scores,
    panels: Sequence[Panel],
    what: str,
    more: str = "",
    look: Mapping[Column, Style] | None = None,
    joined: bool = True,
    chosen: Mapping[str, str] = marks.CHOSEN,
) -> Figure | None:
    """A figure of these panels; None if there are none. Those that all columns solve are named in the caption.

    The title has `what` behind the name of the score, and the caption has `more`. `look` is of the columns, if these
    are not those of the scores; lines join the points of a column if they are `joined`.
    """
    if not panels:
        return None
    look = look or scores.look
    hard = [panel for panel in panels if not (scores.score.is_accuracy and _is_solved(panel))] or panels
    sheet = Sheet(scores.width, [panel.title for panel in hard])
    with figure_style():
        for axes, panel in zip(sheet.panels, hard, strict=True):
            _draw_lines(axes, panel, look, joined)
            marks.limit(axes, scores.score)
            _set_ticks(axes, panel, sheet.panel_width)
            if any(point.mean is None for point in panel.entries):
                axes.set_title(axes.get_title(), pad=8)  # above the marks
            axes.set_xlabel(panel.xlabel)
        for axes in sheet.panels[:: sheet.columns]:
            axes.set_ylabel(scores.score.label)
        points = list(chain.from_iterable(panel.entries for panel in hard))
        handles = [*marks.line_handles(look, joined), *marks.mark_handles(points, scores.has_chance)]
        solved = _on_solved([one for one in panels if one not in hard])
        average = scores.average if AVERAGE in [panel.title for panel in hard] else ""
        caption = marks.caption(scores.selection, points, more, average, solved, chosen=chosen)
        height = 0.95 if len(look) <= FEW else 1.4
        return sheet.finish(f"{scores.score.label.capitalize()} {what}", caption, handles, height)


def _is_solved(panel: Panel) -> bool:
    return all(point.mean is not None and point.mean > NEAR_PERFECT for point in panel.entries)


def _on_solved(panels: Sequence[Panel]) -> str:
    axes: dict[str, list[str]] = {}
    for panel in panels:
        axes.setdefault(panel.title, []).append(panel.xlabel.partition(" (")[0])
    names = ", ".join(f"{title} ({', '.join(labels)})" for title, labels in axes.items())
    return f"not drawn, as all are above {NEAR_PERFECT}: {names}" if names else ""


def _draw_lines(axes: Axes, panel: Panel, look: Mapping[Column, Style], joined: bool) -> None:
    """A line through the means of each column; hollow, and off the line, where they are over fewer settings."""
    points = panel.points.sort_index()
    lacking = points.map(lambda point: pd.notna(point) and point.mean is None).sum(axis=1)
    crowd = points.count(axis=1).max()  # columns with a point at one place
    above = offset_copy(axes.get_xaxis_transform(), axes.get_figure(root=True), y=3, units="points")
    for number, column in enumerate(column for column in look if column in points):
        along, style = points[column].dropna(), look[column]
        # From large to small where few columns may lie on each other, so that all are seen.
        few = 1 < len(points.columns) / 2 < crowd <= FEW
        size = 1.6 - 1.1 * number / len(points.columns) if few else 0.9 if joined else 1.2
        most = max(point.done for point in along)
        line = np.array([point.mean if point.done == most else None for point in along], float)
        axes.plot(along.index, line, color=style.colour, linewidth=1.2 * size, linestyle="-" if joined else "none")
        for x, point in along.items():
            if point.mean is None:
                colour = style.colour if lacking[x] == 1 else marks.SEVERAL
                axes.plot(x, 1, color=colour, transform=above, clip_on=False, label="_no_score", **marks.NO_SCORE)
                continue
            # A narrow marker that is small would be all edge.
            own, face = (size, style.colour) if point.whole else (max(size, 1.2), "white")
            axes.plot(
                x, point.mean, marker=style.marker, markersize=marks.MARKER * own,
                color=style.colour, markerfacecolor=face, markeredgewidth=0 if point.whole else 0.8, zorder=4,
            )  # fmt: skip
            marks.draw_spread(axes, x, point, style.colour, alpha=0.5)
    if isinstance(panel.chance, pd.Series):
        axes.plot(panel.chance.sort_index(), zorder=1.5, **marks.CHANCE)
    else:
        axes.axhline(panel.chance, zorder=1.5, **marks.CHANCE)


def _set_ticks(axes: Axes, panel: Panel, inches: float) -> None:
    """A tick at each value, with those labels that do not touch; counts and rates grow by factors, shares by steps."""
    values = sorted(panel.points.index)
    log = panel.log or (not panel.names and min(values) > 0 and max(values) >= 4 * min(values))
    axes.set_xscale("log" if log else "linear")
    places = np.log(values) if log else np.asarray(values, float)
    room = 0.09 * (places[-1] - places[0]) or 0.5
    low, high = places[0] - room, places[-1] + room
    axes.set_xlim(*(np.exp((low, high)) if log else (low, high)))
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    if panel.names:
        texts = [panel.names[int(value)] for value in values]
        crowded = sum(text_width(text, TICK) + 0.06 for text in texts) > inches
        axes.set_xticklabels(texts, rotation=90 if crowded else 0)
    else:
        axes.set_xticklabels(_spaced(list(map(short_number, values)), (places - low) / (high - low) * inches))


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
    if abs(value) >= 9999.5:  # as 999,700 is 1M
        value = float(f"{value:.3g}")
    for least, divisor, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / divisor:.3g}{letter}"
    return f"{value:.4g}"
