"""Scores against a swept key."""

from collections.abc import Collection, Sequence

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import AVERAGE, natural
from mixerlab.sweeps.figures.axis import Panel, draw_panels
from mixerlab.sweeps.figures.points import Name, Point, chances, task_points
from mixerlab.sweeps.figures.sheet import Layout
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.columns import Column, short_names

MOST_PANELS = 12


def rows_with_panels(rows: Collection[Name]) -> list[Name]:
    """The rows of a figure with a panel for each: all, or of more than `MOST_PANELS` the average."""
    return list(rows) if len(rows) <= MOST_PANELS or (AVERAGE,) not in rows else [(AVERAGE,)]


def score_by_key(
    cells: pd.DataFrame, keys: Sequence[str], key: str, selection: Selection, layout: Layout
) -> Figure | None:
    """The mean score of each task against one of the swept keys: a line for each column without this key.

    Values that are no numbers have no order, and no line joins their points. None if no line has two values.
    """
    lines: dict[Column, list[Column]] = {}
    for column in cells["column"].unique():
        if column.value(key) is not None:
            lines.setdefault(column.without([key]), []).append(column)
    lines = {line: members for line, members in lines.items() if len(members) > 1}
    if not lines:
        return None
    texts = sorted({str(column.value(key)) for members in lines.values() for column in members}, key=natural)
    try:
        places, names = {text: float(text) for text in texts}, []
    except ValueError:
        places, names = {text: float(place) for place, text in enumerate(texts)}, texts
    rows, short = task_points(cells), short_names(keys)[key]
    shown = rows_with_panels(rows)
    guesses = chances(cells, shown)
    panels = []
    for name in shown:
        points: dict[Column, dict[float, Point]] = {
            line: {places[str(column.value(key))]: rows[name][column] for column in members}
            for line, members in lines.items()
        }
        panels.append(Panel(" ".join(name), short, points, {0: guesses[name]}, names))
    score, look = cells["score"].iloc[0], styles(lines, among=cells["column"])
    title = f"{score.capitalize()} by {short}"
    return draw_panels(panels, look, score, selection, title, layout, joined=not names)
