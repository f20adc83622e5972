"""Our scores beside published ones."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mixerlab.records.names import place_rank
from mixerlab.records.schema import ACCURACY
from mixerlab.sweeps.figures.by_task import draw_dot, height_beside, label_lines, named_sheet
from mixerlab.sweeps.figures.marks import MARKER, limit, mark_handles, spread_text
from mixerlab.sweeps.figures.sheet import figure_style
from mixerlab.sweeps.figures.styles import Style, styles
from mixerlab.sweeps.tables.columns import columns_in_order
from mixerlab.sweeps.tables.published import Published, Series, ranges

PUBLISHED: dict[str, Any] = {"color": "black", "linewidth": 1.4}
BAND = "0.82"
MARKERS = "osD^v"  # of our series
SERIES: dict[str, Any] = {"color": "0.3", "markersize": MARKER, "linestyle": "none"}
BAR: dict[str, Any] = {"color": "black", "marker": "|", "markersize": 7, "markeredgewidth": 1.4, "linestyle": "none"}


def comparison(ours: Mapping[str, Series], tables: Mapping[str, Published], told: str, width: float | None) -> Figure:
    """A panel for each name and a line for each of our columns: ours, by their labels, as points with intervals.

    The first table is a bar, and the range of the others a band. `told`: how ours were chosen.
    """
    names = sorted({name for series in ours.values() for name in series}, key=place_rank)
    columns = columns_in_order(column for series in ours.values() for row in series.values() for column in row)
    look, lines = styles(columns), label_lines(columns)
    first, *others = tables.values()
    shown = {(name, column.mixer) for name in names for column in columns}
    others = [table for table in others if not shown.isdisjoint(table.numbers)]
    band = ranges(others)
    with figure_style():
        sheet = named_sheet(width, list(map(str, names)), lines, 0.8, 1.6)
        for panel, name in zip(sheet.panels, names, strict=True):
            for y, column in enumerate(columns):
                place = (name, column.mixer)
                if place in band:
                    low, high, _ = band[place]
                    panel.barh(y, max(high - low, 0.01), 0.7, low, color=BAND, zorder=1)
                if place in first.numbers:
                    panel.plot([first.numbers[place]] * 2, [y - 0.35, y + 0.35], zorder=2.5, **PUBLISHED)
                for number, (marker, series) in enumerate(zip(cycle(MARKERS), ours.values())):
                    at = y + 0.6 * ((number + 0.5) / len(ours) - 0.5)
                    draw_dot(panel, at, series.get(name, {}).get(column), Style(look[column].colour, marker))
            panel.use_sticky_edges = False  # or a band at the left end lies on the frame
            limit(panel, ACCURACY, axis="x")
            panel.set_xlabel(ACCURACY.label)
        points = [entry for series in ours.values() for row in series.values() for entry in row.values()]
        handles: list[Artist] = [
            Line2D([], [], marker=marker, label=label, **SERIES) for marker, label in zip(cycle(MARKERS), ours)
        ]
        handles.append(Line2D([], [], label=first.title, **BAR))
        if others:
            label = f"range of {len(others)} others" if len(others) > 1 else others[0].title
            handles.append(Patch(facecolor=BAND, label=label))
        handles += mark_handles([point for point in points if point.mean is not None], chance=False)
        caption = "; ".join([told, *spread_text(points)])
        height = height_beside(lines) * (1 + 0.5 * (len(ours) - 1))
        return sheet.finish("Ours beside the published accuracy", caption, handles, height, whole=True)
