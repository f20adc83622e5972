"""Figures of our numbers and published ones: a scatter with the diagonal, and bars side by side."""

import math
from collections.abc import Collection, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mixerlab.records.best import Selection
from mixerlab.records.names import MIXERS, in_order
from mixerlab.sweeps.figures.canvas import ONE_COLUMN, TWO_COLUMNS, Layout, Sheet, looks
from mixerlab.sweeps.figures.marks import (
    ACCURACY_LIMITS,
    CHOSEN,
    CROSS_LOOK,
    Handles,
    bar_handle,
    cross_handle,
    draw_bar,
    hollow_bar_handle,
    hollow_handle,
    legend_of,
    line_handles,
)
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.figures.ticks import rate_text
from mixerlab.sweeps.tables.published import Pair

BAR, LINE = 0.8, 0.9  # widths, of places that are 1 apart
DIAGONAL_LOOK: dict[str, Any] = {"color": "0.7", "linewidth": 1.0}
MARKER, STEP = 4.0, 0.03  # points, and how far apart two of them can be told (accuracy)
SCATTER_LIMITS = (-0.08, 1.12)  # beyond [0, 1]: points there may have been moved
# Where a point may be moved to, the nearest first.
_AROUND = sorted(
    (
        (STEP * (column + 0.5 * (row % 2)), STEP * row * math.sqrt(3) / 2)
        for row in range(-4, 5)
        for column in range(-5, 5)
    ),
    key=lambda place: (round(math.hypot(*place), 9), place),
)
PUBLISHED_LOOK: dict[str, Any] = {"color": "black", "linewidth": 1.4}
SEEDS_APART = 0.2
SEED_LOOK: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 3.0,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "markeredgewidth": 0.6,
}


def scatter(
    pairs: Sequence[Pair], selection: Selection, rates: Collection[float] = (), layout: Layout = TWO_COLUMNS
) -> Figure:
    """Ours over the published number, a colour a mixer, hollow where ours misses settings; the diagonal is equality.

    Points at about the same place are drawn beside each other, which the subtitle says, as it does the learning rates
    of which ours are the best (`rates`; empty: all that were tried). At most as wide as one column of ICML.
    """
    shown = [(pair, pair.ours) for pair in pairs if pair.ours is not None]
    places = _apart([(pair.published, ours) for pair, ours in shown])
    look = styles(pair.mixer for pair, _ in shown)
    handles = line_handles(look, joined=False)
    explain: Handles = {"equal": Line2D([], [], label="ours = published", **DIAGONAL_LOOK)}
    with looks():
        sheet = Sheet(Layout(min(layout.width, ONE_COLUMN.width), layout.bare))
        panel = sheet.panel()
        panel.plot([0, 1], [0, 1], zorder=1, **DIAGONAL_LOOK)
        for (pair, _), (x, y) in zip(shown, places, strict=True):
            style = look[pair.mixer]
            panel.plot(
                x, y, linestyle="none", marker=style.marker, markersize=MARKER, color=style.colour, label=pair.mixer,
                markerfacecolor=style.colour if pair.complete else "white", markeredgewidth=0.6,
            )  # fmt: skip
            if not pair.complete:
                explain["hollow"] = hollow_handle()
        panel.set(xlim=SCATTER_LIMITS, ylim=SCATTER_LIMITS, xlabel="published accuracy")
        panel.set_xticks(panel.get_yticks())
        panel.set(xlim=SCATTER_LIMITS, ylim=SCATTER_LIMITS)
        under = _chosen(selection, rates)
        moved = max(
            (math.dist(place, (pair.published, ours)) for place, (pair, ours) in zip(places, shown, strict=True)),
            default=0,
        )
        if moved:
            under += f"; points that would hide each other are moved by up to {moved:.2f}"
        return sheet.arrange(
            "Ours against the published accuracy", under, legend_of(handles, explain), height=sheet.inside(1),
            ylabels=("our accuracy",),
        )  # fmt: skip


def _chosen(selection: Selection, rates: Collection[float]) -> str:
    of_rates = f", among {', '.join(map(rate_text, rates))}" if rates else ""
    return f"{CHOSEN[selection]}, for each seed{of_rates}"


def _apart(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points, those nearer than `STEP` to an earlier one moved to the nearest free place of a grid around it."""
    drawn: list[tuple[float, float]] = []
    for x, y in points:
        near = min(drawn, key=lambda place: math.dist(place, (x, y)), default=None)
        if near is not None and math.dist(near, (x, y)) < STEP:
            free = [
                place
                for dx, dy in _AROUND
                if all(math.dist(place := (x + dx, y + dy), other) > 0.99 * STEP for other in drawn)
            ]
            x, y = free[0] if free else (x, y)
        drawn.append((x, y))
    return drawn


def side_by_side(
    pairs: Sequence[Pair], selection: Selection, rates: Collection[float] = (), layout: Layout = TWO_COLUMNS
) -> Figure:
    """A panel for each name: ours as a bar for each mixer, and the published number as a line across it.

    Of a single setting, a dot marks each of our seeds, of which the bar is the mean. A bar is hollow where ours misses
    settings; a cross stands where we have no number. The subtitle names the `rates` of which ours are the best (empty:
    all that were tried).
    """
    mixers = in_order((pair.mixer for pair in pairs), MIXERS)
    look, places = styles(mixers), {mixer: place for place, mixer in enumerate(mixers)}
    handles: Handles = {mixer: bar_handle(mixer, style) for mixer, style in look.items()}
    explain: Handles = {"published": Line2D([], [], label="published", **PUBLISHED_LOOK)}
    with looks():
        sheet = Sheet(layout)
        for name in dict.fromkeys(pair.name for pair in pairs):
            panel = sheet.panel(name)
            for pair in (pair for pair in pairs if pair.name == name):
                x, style = places[pair.mixer], look[pair.mixer]
                panel.plot([x - LINE / 2, x + LINE / 2], [pair.published] * 2, zorder=4, **PUBLISHED_LOOK)
                if pair.ours is None:
                    panel.plot(x, 0.0, color=style.colour, zorder=5, **CROSS_LOOK)
                    explain["cross"] = cross_handle()
                    continue
                if not pair.complete:
                    explain["hollow"] = hollow_bar_handle()
                draw_bar(panel, x, pair.ours, BAR, style, pair.complete)
                if pair.by_seed:
                    apart = [x + SEEDS_APART * (i - (len(pair.by_seed) - 1) / 2) for i in range(len(pair.by_seed))]
                    panel.plot(apart, pair.by_seed, zorder=5, clip_on=False, **SEED_LOOK)
                    explain["seed"] = Line2D([], [], label="our seeds", **SEED_LOOK)
            panel.set(xticks=[], xlim=(-0.7, len(mixers) - 0.3), ylim=ACCURACY_LIMITS)
        return sheet.arrange(
            "Ours beside the published accuracy", _chosen(selection, rates), legend_of(handles, explain),
            per_line=min(3, sheet.most), below=0.1, height=0.95,
        )  # fmt: skip
