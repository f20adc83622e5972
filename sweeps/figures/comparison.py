"""Our scores beside published ones."""

from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mixerlab.records.best import Selection
from mixerlab.sweeps.figures.axis import short_number
from mixerlab.sweeps.figures.by_task import NO_SCORE, draw_dots, height_beside, named_sheet
from mixerlab.sweeps.figures.marks import MARKER, caption, mark_handles
from mixerlab.sweeps.figures.points import seeds_entry
from mixerlab.sweeps.figures.sheet import figure_style
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.published import Pair
from mixerlab.sweeps.tables.tables import Entry

PUBLISHED: dict[str, Any] = {"color": "black", "marker": "|", "markersize": 7, "markeredgewidth": 1.4}


def comparison(pairs: Sequence[Pair], selection: Selection, rates: Collection[float], width: float | None) -> Figure:
    """A panel for each name, with a line for each mixer: ours as a dot, and the published accuracy as a bar.

    Args:
        pairs: as `pairs_of` gives them.
        selection: what chose ours.
        rates: the learning rates of which ours are the best; empty: all that were tried.
        width: as of a `Sheet`.
    """
    look = styles(Column(pair.mixer) for pair in pairs)
    rows: dict[str, dict[Column, Pair]] = {}
    for pair in pairs:
        rows.setdefault(pair.name, {})[Column(pair.mixer)] = pair
    with figure_style():
        sheet = named_sheet(width, list(rows), look, 0.8, 1.6)
        for panel, row in zip(sheet.panels, rows.values(), strict=True):
            draw_dots(panel, {column: _point(pair) for column, pair in row.items()}, look, "accuracy")
            for y, column in enumerate(look):
                if column in row:
                    panel.plot(row[column].published, y, zorder=4, **PUBLISHED)
        points = [_point(pair) for pair in pairs]
        handles = [
            Line2D([], [], color="0.3", marker="o", markersize=MARKER, linestyle="none", label="ours"),
            Line2D([], [], linestyle="none", label="published", **PUBLISHED),
            *mark_handles(points, chance=False, no_score=Patch(facecolor=NO_SCORE, label="no score")),
        ]
        among = f"for each seed, among {', '.join(map(short_number, rates))}" if rates else "for each seed"
        told = caption(selection, [point for point in points if point.by_seed], among)
        return sheet.finish("Ours beside the published accuracy", told, handles, height_beside(look), whole=True)


def _point(pair: Pair) -> Entry:
    if pair.ours is None or pair.by_seed:
        return seeds_entry(dict(enumerate(pair.by_seed)), pair.complete)
    return Entry(pair.ours, {}, pair.done, pair.total, "ok")
