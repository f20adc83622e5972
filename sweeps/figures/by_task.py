"""Scores by task: bars of few columns, of many dots beside their names."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from textwrap import fill

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.sweeps.figures import marks
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.figures.sheet import TICK, WIDTH, Sheet, figure_style, text_width
from mixerlab.sweeps.figures.styles import Style, short_labels
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.tables import Entry, Row

MOST_BARS, NARROWEST_BAR, WIDEST_BAR = 8, 0.058, 0.3  # of a task; inches, with the gap beside it
INK, NO_SCORE = "0.15", "0.9"


def by_task(scores: Scores) -> Figure:
    """The mean over the settings of each task, and over the tasks; bars only of accuracies, whose 0 is the origin.

    A mean that misses settings or seeds is hollow, and an entry without a score a grey column. Of two seeds each has a
    dot, of more there is an interval.
    """
    rows, look = scores.by_task, scores.look
    places = len(rows) * (len(look) + 1.2)
    few = scores.score.is_accuracy and len(look) <= MOST_BARS
    few = few and ((scores.width or WIDTH) - 0.5) / places >= NARROWEST_BAR
    (texts, common), lines = short_labels(look), label_lines(look)
    handles: list[Artist] = []
    with figure_style():
        if few:
            sheet = Sheet(scores.width, [""], widest=places * WIDEST_BAR)
            (panel,) = sheet.panels
            for place, (task, row) in enumerate(rows.items()):
                _draw_bars(panel, place, row, look)
                panel.hlines(scores.chances[task], place - 0.45, place + 0.45, zorder=3, **marks.CHANCE)
            panel.set(
                xticks=range(len(rows)), xticklabels=rows, xlim=(-0.55, len(rows) - 0.45), ylabel=scores.score.label
            )
            marks.limit(panel, scores.score, bars=True)
            handles += [Patch(facecolor=style.colour, label=texts[column]) for column, style in look.items()]
        else:
            sheet = named_sheet(scores.width, list(rows), lines, 0.7, 1.6)
            for panel, (task, row) in zip(sheet.panels, rows.items(), strict=True):
                for y, (column, style) in enumerate(look.items()):
                    if row[column].mean is None:
                        panel.axhspan(y - 0.4, y + 0.4, color=NO_SCORE, linewidth=0)
                    draw_dot(panel, y, row[column], style)
                panel.axvline(scores.chances[task], zorder=1.5, **marks.CHANCE)
                marks.limit(panel, scores.score, axis="x")
                panel.set_xlabel(scores.score.label)
        points = list(chain.from_iterable(row.values() for row in rows.values()))
        handles += marks.mark_handles(points, scores.has_chance, few, Patch(facecolor=NO_SCORE, label="no score"))
        caption = marks.caption(scores.selection, points, common, scores.average)
        title, height = f"{scores.score.label.capitalize()} by task", 1.5 if few else height_beside(lines)
        return sheet.finish(title, caption, handles, height, whole=not few)


def _draw_bars(panel: Axes, place: float, row: Row, look: Mapping[Column, Style]) -> None:
    """The bars of one row around a place of the axis."""
    width = min(0.3, 0.88 / len(look))
    for number, (column, style) in enumerate(look.items()):
        point, x = row[column], place + (number - (len(look) - 1) / 2) * width
        if point.mean is None:
            panel.axvspan(x - 0.4 * width, x + 0.4 * width, color=NO_SCORE, linewidth=0)
            continue
        face = style.colour if point.whole else "white"
        panel.bar(x, point.mean, 0.86 * width, facecolor=face, edgecolor=style.colour, linewidth=0.8, zorder=2)
        marks.draw_spread(panel, x, point, INK)


def named_sheet(width: float | None, titles: Sequence[str], names: Sequence[str], least: float, most: float) -> Sheet:
    """A sheet of panels with names beside them, from above, as `label_lines` gives those of columns."""
    beside = 0.15 + max(text_width(line, TICK) for name in names for line in name.split("\n"))
    sheet = Sheet(width, titles, least, most, beside)
    for panel in sheet.panels:
        panel.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    return sheet


def height_beside(names: Sequence[str]) -> float:
    """Of a panel with these names beside it, in inches."""
    return (0.03 + 0.1 * max(name.count("\n") + 1 for name in names)) * len(names)


def label_lines(columns: Iterable[Column]) -> list[str]:
    """What each column is called beside a panel, in lines."""
    return [fill(text, 30, break_on_hyphens=False) for text in short_labels(columns)[0].values()]


def draw_dot(panel: Axes, y: float, point: Entry, style: Style) -> None:
    """A score, if there is one, and its spread; hollow if it misses settings or seeds."""
    if point.mean is not None:
        panel.plot(
            point.mean, y, marker=style.marker, markersize=marks.MARKER, color=style.colour, zorder=5,  # over seeds
            markerfacecolor=style.colour if point.whole else "white",
        )  # fmt: skip
        marks.draw_spread(panel, y, point, INK, sideways=True)
