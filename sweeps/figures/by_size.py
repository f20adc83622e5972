"""Scores against state size and against parameters, and what nothing smaller reaches."""

from collections.abc import Mapping
from statistics import fmean

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import AVERAGE, averaged
from mixerlab.sweeps.figures.axis import Panel, draw_panels
from mixerlab.sweeps.figures.points import Name, Point, chances, task_points
from mixerlab.sweeps.figures.sheet import Layout
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.columns import Column

SIZES = {"state_size": "state size (elements)", "num_params": "parameters"}


def score_by_size(cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure | None:
    """The mean score of each task against state size, and that over tasks against parameters too.

    A size is the mean over the settings that have a score. Grey steps join what nothing smaller reaches, of whole
    scores. None if fewer than two columns have a score: there is nothing to compare.
    """
    scored = cells[cells["n"] > 0]
    if scored["column"].nunique() < 2:
        return None
    rows, up = task_points(cells), bool(scored["higher_is_better"].iloc[0])
    guesses = chances(cells, rows)
    last = list(rows)[-1]
    panels = []
    for name, size in [*((name, "state_size") for name in rows), (last, "num_params")]:
        sizes = _mean_sizes(scored, name, size)
        points = {column: {sizes[column]: point} for column, point in rows[name].items() if point.mean is not None}
        steps = _frontier(points, up)
        panels.append(Panel(" ".join(name), SIZES[size], points, {0: guesses[name]}, frontier=steps, log=True))
    look, told = styles(cells["column"]), "sizes are means over settings"
    return draw_panels(panels, look, cells, selection, "by size", layout, told, joined=False)


def _mean_sizes(scored: pd.DataFrame, name: Name, size: str) -> dict[Column, float]:
    """By column, over the settings that a row is about."""
    tasks = averaged(scored["task"]) if name == (AVERAGE,) else name
    by_task: dict[Column, dict[str, list[float]]] = {}
    for cell in scored[scored["task"].isin(tasks)].itertuples():
        by_task.setdefault(cell.column, {}).setdefault(cell.task, []).append(getattr(cell, size))
    return {column: fmean(map(fmean, sizes.values())) for column, sizes in by_task.items()}


def _frontier(points: Mapping[Column, Mapping[float, Point]], up: bool) -> list[tuple[float, float]]:
    """(size, score) of what nothing smaller reaches; empty if that is a single one."""
    whole = [(x, point.mean) for along in points.values() for x, point in along.items() if point.whole]
    best: list[tuple[float, float]] = []
    for x, mean in sorted((x, mean) for x, mean in whole if mean is not None):
        if not best or (mean > best[-1][1] if up else mean < best[-1][1]):
            best.append((x, mean))
    return best if len(best) > 1 else []
