"""Scores by task: bars of few columns, of many dots beside their names."""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.records.best import Selection
from mixerlab.sweeps.figures.marks import (
    CHANCE,
    MARKER,
    caption,
    draw_spread,
    limit,
    mark_handles,
)
from mixerlab.sweeps.figures.points import Point, chances, score_name, task_points
from mixerlab.sweeps.figures.sheet import TICK, Layout, Sheet, figure_style, text_width
from mixerlab.sweeps.figures.styles import Style, brief_labels, short_labels, styles
from mixerlab.sweeps.tables.columns import Column

MOST_BARS = 8  # of a task
NARROWEST_BAR, WIDEST_BAR = 0.058, 0.3  # inches, with the gap beside it
LONGEST_LINE = 30  # characters of a name beside its dots
INK, NO_SCORE = "0.15", "0.9"


def by_task(cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure:
    """The mean over the settings of each task, and over the tasks.

    A mean that misses settings or seeds is hollow, and an entry without a score a grey column. Of two seeds each has a
    dot, of more there is an interval.
    """
    rows, look = task_points(cells), styles(cells["column"])
    score = score_name(cells)
    names = {name: " ".join(name) for name in rows}
    points = list(chain.from_iterable(row.values() for row in rows.values()))
    guesses = chances(cells, rows)
    few = len(look) <= MOST_BARS and (layout.width - 0.5) / len(rows) / (len(look) + 1.2) >= NARROWEST_BAR
    with figure_style():
        if few:
            sheet = Sheet(layout, 1, widest=len(rows) * (len(look) + 1.2) * WIDEST_BAR)
            (panel,) = sheet.panels
            for place, (name, row) in enumerate(rows.items()):
                draw_bars(panel, place, row, look)
                panel.hlines(guesses[name], place - 0.45, place + 0.45, zorder=3, **CHANCE)
            panel.set(xticks=range(len(rows)), xticklabels=names.values(), xlim=(-0.55, len(rows) - 0.45), ylabel=score)
            limit(panel, score)
            handles, common = bar_handles(look)
        else:
            sheet = dots_sheet(layout, len(rows), look, 0.7, 1.6)
            for panel, (name, row) in zip(sheet.panels, rows.items(), strict=True):
                draw_dots(panel, row, look)
                panel.axvline(guesses[name], zorder=1.5, **CHANCE)
                panel.set_title(names[name])
            label_dots(sheet, look, score)
            handles, common = [], brief_labels(look)[1]
        chance = any(not np.isnan(level) for level in guesses.values())
        handles += mark_handles(points, chance, few, Patch(facecolor=NO_SCORE, label="no score"))
        told = caption(selection, points, common)
        return sheet.finish(
            f"{score.capitalize()} by task", told, handles, 1.5 if few else height_of(look), whole=not few
        )


def draw_bars(panel: Axes, place: float, row: Mapping[Column, Point], look: Mapping[Column, Style]) -> None:
    """The bars of one row around a place of the axis."""
    width = min(0.3, 0.88 / len(look))
    for number, (column, style) in enumerate(look.items()):
        point, x = row[column], place + (number - (len(look) - 1) / 2) * width
        if point.mean is None:
            panel.axvspan(x - 0.4 * width, x + 0.4 * width, color=NO_SCORE, linewidth=0, label="_none")
            continue
        panel.bar(
            x, point.mean, 0.86 * width, facecolor=style.colour if point.whole else "white", edgecolor=style.colour,
            linewidth=0.8, label="_whole" if point.whole else "_incomplete", zorder=2,
        )  # fmt: skip
        draw_spread(panel, x, point, INK)


def bar_handles(look: Mapping[Column, Style]) -> tuple[list[Artist], str]:
    """What the legend shows for each column, and what all have in common."""
    texts, common = short_labels(look)
    return [Patch(facecolor=style.colour, label=texts[column]) for column, style in look.items()], common


def dots_sheet(layout: Layout, count: int, columns: Iterable[Column], narrowest: float, widest: float) -> Sheet:
    """A sheet of panels with room for the names of the columns beside them."""
    names = max(text_width(line, TICK) for text in names_beside(columns) for line in text.split("\n"))
    return Sheet(layout, count, narrowest, widest, left=0.15 + names)


def height_of(columns: Collection[Column]) -> float:
    """Of a panel with the names of the columns beside it, in inches."""
    lines = max(name.count("\n") + 1 for name in names_beside(columns))
    return (0.035 + 0.1 * lines) * len(columns)


def names_beside(columns: Iterable[Column]) -> list[str]:
    """What the columns are called beside a panel, long names in lines."""
    return [fill(text, LONGEST_LINE, break_on_hyphens=False) for text in brief_labels(columns)[0].values()]


def draw_dots(panel: Axes, row: Mapping[Column, Point], look: Mapping[Column, Style]) -> None:
    """The scores of one row, a line of the panel for each column."""
    for y, (column, style) in enumerate(look.items()):
        point = row.get(column, Point())
        if point.mean is None:
            panel.axhspan(y - 0.4, y + 0.4, color=NO_SCORE, linewidth=0, label="_none")
            continue
        panel.plot(
            point.mean, y, linestyle="none", marker=style.marker, markersize=MARKER * style.enlarged,
            markeredgecolor=style.colour, markerfacecolor=style.colour if point.whole else "white", zorder=3,
            label="_whole" if point.whole else "_incomplete",
        )  # fmt: skip
        draw_spread(panel, y, point, style.colour, seeds=INK, sideways=True)


def label_dots(sheet: Sheet, look: Mapping[Column, Style], score: str) -> None:
    """The names beside the panels, and the score below them."""
    for panel in sheet.panels:
        panel.set(yticks=range(len(look)), yticklabels=names_beside(look), ylim=(len(look) - 0.4, -0.6))
        limit(panel, score, axis="x")
        panel.set_xlabel(score)
