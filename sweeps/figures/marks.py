"""The marks of scores that all figures share, and the legend and caption that explain them."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mixerlab.records.schema import Score
from mixerlab.sweeps.figures.styles import Style, short_labels
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.tables import Entry

CHECKPOINT = {"official": "checkpoint chosen on test", "clean": "checkpoint chosen on validation"}
CHOSEN = {selection: f"learning rate and {told}" for selection, told in CHECKPOINT.items()}
CHANCE: dict[str, Any] = {"color": "0.45", "linestyle": (0, (2, 1.5)), "linewidth": 0.9, "label": "chance"}
NO_SCORE: dict[str, Any] = {"marker": "x", "markersize": 3.5, "markeredgewidth": 1.0, "linestyle": "none"}
SEED: dict[str, Any] = {
    "marker": "o",
    "markersize": 2.4,
    "markeredgecolor": "white",  # to be seen on a bar of its own colour
    "markeredgewidth": 0.4,
    "linestyle": "none",
    "label": "seed",
}
SEVERAL = "0.4"  # the colour of a mark that stands for several columns
MARKER = 4.0  # points
SHORTEST = 0.1  # axis of accuracies: it does not magnify what seeds differ by


def limit(panel: Axes, score: Score, axis: str = "y", bars: bool = False) -> None:
    """The axis of a score, once all is drawn: accuracies from 0 to 1, others as they come.

    Where accuracies, and chance, fill less than half of that, the axis is as long as they need; `bars` begin at 0.
    """
    if not score.is_accuracy:
        return
    scale = panel.xaxis if axis == "x" else panel.yaxis
    panel.autoscale(axis=axis)  # type: ignore[arg-type]
    low, high = scale.get_view_interval()
    low = -0.04 * high if bars else low
    ends, major, minor = (-0.04, 1.06), [0.0, 0.5, 1.0], [0.25, 0.75]
    if high - low < 0.5:
        room = max(0.0, SHORTEST - (high - low)) / 2
        ends = max(ends[0], low - room), min(ends[1], high + room)
        major, minor = [tick for tick in MaxNLocator(4).tick_values(*ends) if ends[0] <= tick <= min(ends[1], 1)], []
    scale.set_ticks(major)
    scale.set_ticks(minor, minor=True)
    panel.set(**{f"{axis}lim": ends})
    panel.grid(visible=True, which="both", axis=axis)  # type: ignore[arg-type]


def dots_of(entry: Entry) -> list[float]:
    """The scores of single seeds that are drawn as dots, in place of an interval.

    Those of one setting, up to five: some learned it and others did not, so that an interval would span the panel. Of a
    mean over settings two, which have no useful interval.
    """
    seeds = list(entry.by_seed.values())
    return seeds if 2 <= len(seeds) <= (5 if entry.total == 1 else 2) else []


def draw_spread(panel: Axes, at: float, point: Entry, colour: str, alpha: float = 1.0, sideways: bool = False) -> None:
    """The interval of a score, dotted if it is a lower bound, or its seeds."""
    ends, look = dots_of(point), SEED
    if not ends and (half := point.half_interval) is not None and point.mean is not None:
        ends = [point.mean - half, point.mean + half]
        line = (0, (1, 1)) if point.is_bound else "-"
        look = {"linewidth": 0.8, "linestyle": line, "alpha": alpha, "label": "_interval"}
    if ends:
        places = [[at] * len(ends), ends]
        panel.plot(*(reversed(places) if sideways else places), color=colour, zorder=4, **look)


def line_handles(look: Mapping[Column, Style], joined: bool = True) -> list[Artist]:
    """A line and its marker for each column or, not `joined`, the marker; and what all columns have in common."""
    texts, common = short_labels(look)
    found: list[Artist] = [
        Line2D([], [], color=style.colour, marker=style.marker, markersize=MARKER,
               linestyle="-" if joined else "none", label=texts[column])
        for column, style in look.items()
    ]  # fmt: skip
    return found + ([Line2D([], [], linestyle="none", label=common)] if common else [])


def mark_handles(
    points: Iterable[Entry], chance: bool, bars: bool = False, no_score: Artist | None = None
) -> list[Artist]:
    """What the legend says besides the columns: of the marks that occur among these points.

    `no_score` stands for an entry without a score, where that is not a small cross.
    """
    points = list(points)
    found: list[Artist] = []
    if any(point.mean is not None and not point.whole for point in points):
        hollow = Line2D([], [], color="0.3", marker="o", markersize=MARKER, markerfacecolor="white", linestyle="none")
        found.append(Patch(facecolor="white", edgecolor="0.3", linewidth=0.8) if bars else hollow)
        found[-1].set_label("incomplete mean")
    if any(point.mean is None for point in points):
        found.append(no_score or Line2D([], [], color=SEVERAL, label="no score", **NO_SCORE))
    if any(map(dots_of, points)):
        found.append(Line2D([], [], color="0.2", **SEED))
    return [*found, *([Line2D([], [], **CHANCE)] if chance else [])]


def caption(selection: str, points: Iterable[Entry], *more: str, chosen: Mapping[str, str] = CHOSEN) -> str:
    """How scores were chosen, what is particular to a figure, and what its whiskers are."""
    return "; ".join([chosen[selection], *(part for part in more if part), *spread_text(points)])


def spread_text(points: Iterable[Entry]) -> list[str]:
    """What the whiskers of a figure are."""
    points = [point for point in points if point.mean is not None]
    parts = []
    whiskered = [point for point in points if point.half_interval is not None and not dots_of(point)]
    if whiskered:
        parts.append("whiskers: 95% Student t interval over seeds")
    if any(point.is_bound for point in whiskered):
        parts.append("dotted: a lower bound, as some settings have one seed")
    if points and not any(point.error[1] for point in points):
        parts.append("one seed")
    return parts
