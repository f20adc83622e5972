"""What figures share: lines, intervals over seeds, crosses, the line of chance, the legend, which rows have panels."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from mixerlab.records.names import BASELINE, sees_future
from mixerlab.sweeps.figures.canvas import LONGEST_LINE
from mixerlab.sweeps.figures.labels import without_shared
from mixerlab.sweeps.figures.styles import Style
from mixerlab.sweeps.figures.ticks import axis_span, short_number
from mixerlab.sweeps.tables.intervals import interval
from mixerlab.sweeps.tables.tables import AVERAGE, Score, Table

CHOSEN = {
    "official": "learning rate and checkpoint chosen on test",
    "clean": "learning rate and checkpoint chosen on validation",
}
INTERVALS = "error bars: 95% Student t intervals over seeds, cut to [0, 1]"
SIDE_BY_SIDE = "mixers side by side where error bars would overlap"
ACCURACY_LIMITS = (-0.05, 1.06)
# Of mixers at the same place the first is drawn largest and below, so that all are seen: points.
NESTED_MARKERS = (7.0, 2.8)
APART_MARKERS = (6.0, 4.4)  # of those that rarely lie at one place
# Of shapes that look smaller than a disc of their size: by how much they are larger.
_ENLARGED = {"P": 1.5, "*": 1.6, "X": 1.5, "p": 1.2, "h": 1.1, "H": 1.1, "d": 1.3}
DODGED_MARKERS = (3.6, 3.0)  # of those that stand side by side
MOST_PANELS = 12  # rows of a table that have a panel each
INCOMPLETE = "incomplete mean"
CHANCE_LOOK: dict[str, Any] = {"color": "0.45", "linestyle": (0, (2, 1.5)), "linewidth": 0.9}
CHANCE = Line2D([], [], label="chance", **CHANCE_LOOK)
CROSS_LOOK: dict[str, Any] = {"marker": "x", "markersize": 4.5, "markeredgewidth": 1.2, "linestyle": "none"}
SEVERAL = "0.3"  # the colour of a cross that stands for several mixers
FUTURE = Line2D([], [], linestyle="none", label="‡ sees the future")

# Values of one's own, as a reader says them.
_SPOKEN = {"num_train_examples": "{} training examples", "test_seq_len": "tested at {}"}

Handles = dict[str, Line2D | Patch]


def setting_title(task: str, setting: str) -> str:
    """What a panel or a row about a setting is called: `icr`, `icr seq_len-256`, `icr 100k training examples`."""
    parts = [] if setting == BASELINE else setting.split(",")
    spoken = [part.strip() for part in parts]
    for place, part in enumerate(spoken):
        key, equals, value = part.partition("=")
        if key in _SPOKEN and equals and value.isdecimal():
            spoken[place] = _SPOKEN[key].format(short_number(float(value)))
    return " ".join([task, *([", ".join(spoken)] if spoken else [])])


def rows_with_panels(table: Table) -> list[tuple[str, ...]]:
    """The rows of a table that have a panel in a figure with one for each: all, if there are at most `MOST_PANELS`.

    Of more, the average if the table has one; else the last setting of each task, which is its hardest level. The heat
    map shows the others.
    """
    rows = list(table.rows)
    if len(rows) <= MOST_PANELS:
        return rows
    return [(AVERAGE,)] if (AVERAGE,) in rows else list({name[0]: name for name in rows}.values())


def cross_handle() -> Line2D:
    """What the legend shows for an entry without a score."""
    return Line2D([], [], color=SEVERAL, label="no score", **CROSS_LOOK)


def bar_handle(mixer: str, style: Style) -> Patch:
    """What the legend shows for a mixer in a figure of bars."""
    return Patch(facecolor=style.colour, edgecolor="white", linewidth=0, hatch=style.hatch or None, label=mixer)


def hollow_bar_handle() -> Patch:
    """What the legend of bars shows for a mean over fewer settings or seeds than there are."""
    return Patch(facecolor="white", edgecolor="0.3", linewidth=0.8, label=INCOMPLETE)


def draw_bar(panel: Axes, x: float, height: float, width: float, style: Style, whole: bool, label: str = "") -> None:
    """A bar in the look of its mixer, hollow if its mean misses settings or seeds."""
    panel.bar(
        x, height, width, label=label, hatch=style.hatch or None, color=style.colour if whole else "white",
        edgecolor="white" if whole else style.colour, linewidth=0 if whole else 0.8,
    )  # fmt: skip


def hollow_handle() -> Line2D:
    """What the legend shows for a mean over fewer settings or seeds than there are."""
    return Line2D(
        [], [], color="0.3", marker="o", markersize=4.5, markerfacecolor="white", linestyle="none", label=INCOMPLETE
    )


def line_handles(look: Mapping[str, Style], joined: bool = True) -> Handles:
    """What the legend shows for each column of the tables: a line and its marker or, not `joined`, the marker."""
    return {
        mixer: Line2D(
            [], [], color=style.colour, marker=style.marker, markersize=4.5, linestyle="-" if joined else "none",
            label=mixer,
        )
        for mixer, style in look.items()
    }  # fmt: skip


def legend_of(mixers: Handles, explain: Handles) -> list[Line2D | Patch]:
    """The mixers, then what else there is to explain. What all mixers share is said once, if a label is long."""
    future = {"future": FUTURE} if any(map(sees_future, mixers)) else {}
    shared = {}
    if max(map(len, mixers), default=0) > LONGEST_LINE:
        labels, of_all = without_shared(list(mixers))
        for handle, label in zip(mixers.values(), labels, strict=True):
            handle.set_label(label)
        shared = {"shared": Line2D([], [], linestyle="none", label=f"all: {of_all}")} if of_all else {}
    return [*mixers.values(), *(shared | explain | future).values()]


def mark_intervals(panel: Axes, points: Iterable[tuple[float, Score]], colour: str, wider: float = 0.0) -> None:
    """The interval over seeds (Student's, 95%) at each x, as one line with gaps: lines are most of what a panel costs.

    `wider` (points): by how much the line is wider than the narrowest, so that one that others cover is seen.
    """
    places: list[float] = []
    bounds: list[float] = []
    for x, score in points:
        if (found := interval(list(score.by_seed.values()))) is not None:
            places += [x, x, np.nan]
            bounds += [*found, np.nan]
    if places:
        panel.plot(
            places, bounds, color=colour, linewidth=0.9 + wider, zorder=3.5, marker="_", markersize=2.5 + wider,
            label="_interval",
        )  # fmt: skip


def dodged(
    points: Mapping[str, Sequence[tuple[float, Score]]], order: Sequence[str], logarithmic: bool
) -> dict[str, list[tuple[float, Score]]]:
    """The points of an axis, moved so that no interval over seeds hides another.

    If several mixers have an interval at one value, all mixers with a score stand side by side at each value, in
    `order`, around the value and nearer to it than to the next one. Otherwise all points stay.
    """
    seeds = Counter(x for of_mixer in points.values() for x, score in of_mixer if len(score.by_seed) > 1)
    if max(seeds.values(), default=0) < 2:
        return {mixer: list(of_mixer) for mixer, of_mixer in points.items()}
    values = sorted({value for of_mixer in points.values() for value, _ in of_mixer})
    places = np.log(values) if logarithmic else np.asarray(values, float)
    moved: dict[tuple[str, float], float] = {}
    for number, (value, place) in enumerate(zip(values, places, strict=True)):
        crowd = [
            mixer for mixer in order if any(x == value and score.mean is not None for x, score in points.get(mixer, ()))
        ]
        if len(crowd) > 1:
            gaps = np.abs(np.concatenate([places[:number][-1:], places[number + 1 :][:1]]) - place)
            room = min([0.042 * axis_span(places), *0.35 * gaps])
            beside = place + np.linspace(-room, room, len(crowd))
            moved |= {
                (mixer, value): float(x)
                for mixer, x in zip(crowd, np.exp(beside) if logarithmic else beside, strict=True)
            }
    return {mixer: [(moved.get((mixer, x), x), score) for x, score in of_mixer] for mixer, of_mixer in points.items()}


def dodged_lines(
    panel: Axes, points: Mapping[str, Sequence[tuple[float, Score]]], look: Mapping[str, Style], joined: bool = True
) -> tuple[Handles, bool]:
    """`accuracy_lines` through `dodged` points, and whether any stand beside their value; the panel has its ticks."""
    apart = dodged(points, list(look), logarithmic=panel.get_xscale() == "log")
    is_apart = any(apart[mixer] != list(of_mixer) for mixer, of_mixer in points.items())
    markers = DODGED_MARKERS if is_apart else NESTED_MARKERS
    return accuracy_lines(panel, apart, look, markers, joined), is_apart


def with_intervals(subtitle: str, panels: Iterable[Axes], side_by_side: bool = False) -> str:
    """The subtitle, and what error bars are if a panel has any."""
    if not any(line.get_label() == "_interval" for panel in panels for line in panel.lines):
        return subtitle
    return f"{subtitle}{'; ' + SIDE_BY_SIDE if side_by_side else ''}; {INTERVALS}"


def accuracy_lines(
    panel: Axes,
    points: Mapping[str, Sequence[tuple[float, Score]]],
    look: Mapping[str, Style],
    markers: tuple[float, float] = NESTED_MARKERS,
    joined: bool = True,
) -> Handles:
    """A line per mixer through its accuracies, with their intervals over seeds; returns what the legend must explain.

    Not `joined`, the points have no line: the places of names without an order say nothing of what is between them.

    A mean over fewer settings or seeds than there are is hollow, and no line leads to one over fewer settings than the
    mixer's others. One over none is a cross at zero, grey if several mixers have none. Where points of several mixers
    stand at one place (`dodged_lines` moves them apart), their markers and intervals lie on each other from large to
    small.
    """
    explain: Handles = {}
    lacking = Counter(x for of_mixer in points.values() for x, score in of_mixer if score.mean is None)
    largest, smallest = markers
    step = (largest - smallest) / max(4, len(look) - 1)
    largest -= 0.75 * step * max(0, 5 - len(look))  # of few mixers no marker has to be large
    for number, (mixer, style) in enumerate(look.items()):
        of_mixer = points.get(mixer, ())
        if not of_mixer:
            continue
        size = largest - number * step
        drawn_size = size * _ENLARGED.get(style.marker, 1.0)
        # No line leads to a mean over fewer settings: it would rise where these are easier.
        most = max(score.done for _, score in of_mixer)
        means = [
            score.mean if score.mean is not None and (score.complete or score.done == most) else np.nan
            for _, score in of_mixer
        ]
        panel.plot(
            [x for x, _ in of_mixer], means, color=style.colour, label=mixer, marker=style.marker,
            markersize=drawn_size, markeredgewidth=0, linestyle="-" if joined else "none",
        )  # fmt: skip
        crosses = [x for x, score in of_mixer if score.mean is None]
        for colour, shared in ((style.colour, False), (SEVERAL, True)):
            if places := [x for x in crosses if (lacking[x] > 1) == shared]:
                panel.plot(places, [0.0] * len(places), color=colour, zorder=4, label="_cross", **CROSS_LOOK)
                explain["cross"] = cross_handle()
        hollow = [(x, score.mean) for x, score in of_mixer if score.mean is not None and not score.whole]
        if hollow:
            panel.plot(
                *zip(*hollow, strict=True), color=style.colour, linestyle="none", marker=style.marker,
                markersize=drawn_size, markerfacecolor="white", markeredgewidth=0.8, label="_hollow",
            )  # fmt: skip
            explain["hollow"] = hollow_handle()
        mark_intervals(panel, of_mixer, style.colour, 0.3 * (size - smallest))
    panel.set_ylim(*ACCURACY_LIMITS)
    return explain


def chance_line(panel: Axes, level: float | Mapping[float, float]) -> Handles:
    """The accuracy of a guess, one for the panel or by x; nothing where it is not known."""
    if not isinstance(level, Mapping):
        if np.isnan(level):
            return {}
        panel.axhline(level, zorder=1.5, label="_chance", **CHANCE_LOOK)
        return {"chance": CHANCE}
    known = [(x, chance) for x, chance in sorted(level.items()) if not np.isnan(chance)]
    if not known:
        return {}
    panel.plot(*zip(*known, strict=True), zorder=1.5, label="_chance", **CHANCE_LOOK)
    return {"chance": CHANCE}
