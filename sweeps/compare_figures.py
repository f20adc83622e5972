"""Figures of our numbers and published ones: a scatter with the diagonal, and bars side by side."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mixerlab.sweeps.best import Selection
from mixerlab.sweeps.canvas import Sheet, looks
from mixerlab.sweeps.marks import (
    ACCURACY_LIMITS,
    CHOSEN,
    CROSS_LOOK,
    Handles,
    bar_handle,
    cross_handle,
    draw_bar,
    hollow_bar_handle,
    legend_of,
)
from mixerlab.sweeps.names import MIXERS, in_order
from mixerlab.sweeps.published import Pair
from mixerlab.sweeps.styles import styles

BAR, LINE = 0.8, 0.9  # widths, of places that are 1 apart
PUBLISHED_LOOK: dict[str, Any] = {"color": "black", "linewidth": 1.4}


def scatter(pairs: Sequence[Pair]) -> Figure:
    """Ours over the published number, a colour a mixer, hollow where ours misses settings; the diagonal is equality."""
    shown = [pair for pair in pairs if pair.ours is not None]
    look = styles(pair.mixer for pair in shown)
    figure = Figure(figsize=(4.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1, zorder=0)
    for mixer, style in look.items():
        for complete in (True, False):
            chosen = [pair for pair in shown if pair.mixer == mixer and pair.complete is complete]
            axes.plot(
                [pair.published for pair in chosen],
                [pair.ours for pair in chosen if pair.ours is not None],
                linestyle="none",
                marker=style.marker,
                color=style.colour,
                markerfacecolor=style.colour if complete else "white",
                label=mixer if complete else None,
            )
    axes.set(xlim=ACCURACY_LIMITS, ylim=ACCURACY_LIMITS, xlabel="published accuracy", ylabel="ours")
    axes.set_aspect("equal")
    axes.legend(frameon=False)
    return figure


def side_by_side(pairs: Sequence[Pair], selection: Selection) -> Figure:
    """A panel for each name: ours as a bar for each mixer, and the published number as a line across it.

    A bar is hollow where ours misses settings; a cross stands where we have no number.
    """
    mixers = in_order((pair.mixer for pair in pairs), MIXERS)
    look, places = styles(mixers), {mixer: place for place, mixer in enumerate(mixers)}
    handles: Handles = {mixer: bar_handle(mixer, style) for mixer, style in look.items()}
    explain: Handles = {"published": Line2D([], [], label="published", **PUBLISHED_LOOK)}
    with looks():
        sheet = Sheet(2)
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
            panel.set(xticks=[], xlim=(-0.7, len(mixers) - 0.3), ylim=ACCURACY_LIMITS)
        return sheet.arrange(
            "Ours beside the published accuracy", f"{CHOSEN[selection]}, for each seed", legend_of(handles, explain),
            per_line=3, below=0.1, height=0.95,
        )  # fmt: skip
