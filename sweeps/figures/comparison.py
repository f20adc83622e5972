"""Our scores beside published ones."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mixerlab.records.schema import ACCURACY
from mixerlab.sweeps.figures.by_task import draw_dot, height_beside, label_lines, named_sheet
from mixerlab.sweeps.figures.marks import MARKER, limit, mark_handles, spread_text
from mixerlab.sweeps.figures.sheet import figure_style
from mixerlab.sweeps.figures.styles import Style, styles
from mixerlab.sweeps.tables.columns import columns_in_order
from mixerlab.sweeps.tables.published import name_of, of_mixers, ranges

PUBLISHED: dict[str, Any] = {"color": "black", "linewidth": 1.4}
BAND = "0.82"
MARKERS = "osD^v"  # of our series
SERIES: dict[str, Any] = {"color": "0.3", "markersize": MARKER, "linestyle": "none"}
BAR: dict[str, Any] = {"color": "black", "marker": "|", "markersize": 7, "markeredgewidth": 1.4, "linestyle": "none"}


def comparison(
    ours: pd.DataFrame, numbers: pd.DataFrame, titles: Mapping[str, str], told: str, width: float | None
) -> Figure:
    """A panel for each task and setting and a line for each column: each series of ours as points with intervals.

    The first of the published tables is a bar, and the range of the others a band. `told`: how ours were chosen.
    """
    names, columns = ours.index.droplevel("column").unique(), columns_in_order(ours.index.unique("column"))
    look, lines = styles(columns), label_lines(columns)
    every = pd.MultiIndex.from_tuples((*name, column) for name in names for column in columns)
    points, beside = ours.reindex(every), of_mixers(numbers, every)
    first, *others = beside
    others = list(beside[others].dropna(axis=1, how="all"))
    band = ranges(beside[others])
    with figure_style():
        sheet = named_sheet(width, [name_of(*name) for name in names], lines, 0.8, 1.6)
        for panel, name in zip(sheet.panels, names, strict=True):
            for y, (column, style) in enumerate(look.items()):
                low, high, count = band.loc[(*name, column)]
                if count:
                    panel.barh(y, max(high - low, 0.01), 0.7, low, color=BAND, zorder=1)
                if pd.notna(bar := beside.loc[(*name, column), first]):
                    panel.plot([bar] * 2, [y - 0.35, y + 0.35], zorder=2.5, **PUBLISHED)
                for number, (marker, point) in enumerate(zip(cycle(MARKERS), points.loc[(*name, column)])):
                    at = y + 0.6 * ((number + 0.5) / len(ours.columns) - 0.5)
                    if pd.notna(point):
                        draw_dot(panel, at, point, Style(style.colour, marker))
            panel.use_sticky_edges = False  # or a band at the left end lies on the frame
            limit(panel, ACCURACY, axis="x")
            panel.set_xlabel(ACCURACY.label)
        entries = list(ours.stack().dropna())
        handles: list[Artist] = [
            Line2D([], [], marker=marker, label=label, **SERIES) for marker, label in zip(cycle(MARKERS), ours)
        ]
        handles.append(Line2D([], [], label=titles[first], **BAR))
        if others:
            label = f"range of {len(others)} others" if len(others) > 1 else titles[others[0]]
            handles.append(Patch(facecolor=BAND, label=label))
        handles += mark_handles([entry for entry in entries if entry.mean is not None], chance=False)
        caption = "; ".join([told, *spread_text(entries)])
        height = height_beside(lines) * (1 + 0.5 * (len(ours.columns) - 1))
        return sheet.finish("Ours beside the published accuracy", caption, handles, height, whole=True)
