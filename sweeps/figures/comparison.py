"""Our scores beside published ones."""

from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mixerlab.records.best import Selection
from mixerlab.sweeps.figures.axis import short_number
from mixerlab.sweeps.figures.by_task import NO_SCORE, dots_sheet, draw_dots, height_of, label_dots
from mixerlab.sweeps.figures.marks import CHOSEN, MARKER, mark_handles
from mixerlab.sweeps.figures.points import Point, seeds_point
from mixerlab.sweeps.figures.sheet import Layout, figure_style
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.published import Pair

PUBLISHED: dict[str, Any] = {
    "color": "black",
    "marker": "|",
    "markersize": 7,
    "markeredgewidth": 1.4,
    "linestyle": "none",
}


def side_by_side(pairs: Sequence[Pair], selection: Selection, rates: Collection[float], layout: Layout) -> Figure:
    """A panel for each name: a line for each mixer with a dot for ours and a bar for the published accuracy.

    Of a single setting, our two seeds are small dots, and more an interval. Where we have no number is a grey bar.

    Args:
        pairs: as `pairs_of` gives them.
        selection: what chose ours.
        rates: the learning rates of which ours are the best; empty: all that were tried.
        layout: how wide it is, and whether it has a heading.
    """
    look = styles(Column(pair.mixer) for pair in pairs)
    lines = {column: y for y, column in enumerate(look)}
    names = list(dict.fromkeys(pair.name for pair in pairs))
    with figure_style():
        sheet = dots_sheet(layout, len(names), look, 0.9, 1.6)
        for panel, name in zip(sheet.panels, names, strict=True):
            own = {Column(pair.mixer): pair for pair in pairs if pair.name == name}
            draw_dots(panel, {column: _point(pair) for column, pair in own.items()}, look)
            for column, pair in own.items():
                panel.plot(pair.published, lines[column], label="_published", zorder=4, **PUBLISHED)
            panel.set_title(name)
        label_dots(sheet, look, "accuracy")
        marks = mark_handles(map(_point, pairs), False, no_score=Patch(facecolor=NO_SCORE, label="no score"))
        handles = [
            Line2D([], [], color="0.3", marker="o", markersize=MARKER, linestyle="none", label="ours"),
            Line2D([], [], label="published", **PUBLISHED),
            *marks,
        ]
        told = _chosen(selection, rates)
        return sheet.finish("Ours beside the published accuracy", told, handles, height_of(look), whole=True)


def _chosen(selection: Selection, rates: Collection[float]) -> str:
    among = f", among {', '.join(map(short_number, rates))}" if rates else ""
    return f"{CHOSEN[selection]}, for each seed{among}"


def _point(pair: Pair) -> Point:
    if pair.ours is None:
        return Point()
    if pair.by_seed:
        return seeds_point(dict(enumerate(pair.by_seed)), pair.complete)
    return Point(pair.ours, settings=pair.done, whole=pair.complete)
