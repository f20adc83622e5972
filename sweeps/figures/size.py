"""Accuracy against state size and against parameters, and what nothing smaller reaches."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mixerlab.records.best import Selection
from mixerlab.records.names import AVERAGE, averaged, mixer_of
from mixerlab.sweeps.figures.canvas import TWO_COLUMNS, Layout, Sheet, looks
from mixerlab.sweeps.figures.marks import (
    APART_MARKERS,
    CHOSEN,
    Handles,
    accuracy_lines,
    chance_line,
    legend_of,
    line_handles,
    rows_with_panels,
    with_intervals,
)
from mixerlab.sweeps.figures.styles import Style, styles
from mixerlab.sweeps.figures.ticks import size_ticks
from mixerlab.sweeps.tables.chance import chances_of_rows
from mixerlab.sweeps.tables.tables import Score, Table


def accuracy_by_size(
    table: Table, cells: pd.DataFrame, selection: Selection, layout: Layout = TWO_COLUMNS
) -> Figure | None:
    """Accuracy against state size and against parameters, two panels per row (`rows_with_panels`).

    If the table has an average, only that has a panel for parameters, which the subtitle says.

    None if fewer than two columns have a score: there is nothing to compare.

    A size is the mean over the settings of the row that have a score. Lines join the columns of one mixer; the grey
    steps join what nothing smaller reaches.
    """
    scored = cells[cells["n"] > 0]
    if scored["mixer"].nunique() < 2:
        return None
    look, chances = styles(table.mixers), chances_of_rows(cells, table)
    rows = rows_with_panels(table)
    if (AVERAGE,) in rows:
        panels = [*((name, "state_size") for name in rows), ((AVERAGE,), "num_params")]
    else:
        panels = [(name, size) for name in rows for size in ("state_size", "num_params")]
    explain: Handles = {}
    with looks():
        sheet = Sheet(layout)
        per_line = sheet.per_line(len(panels))
        for name, size in panels:
            sizes = _mean_sizes(scored, name, size)
            row = {mixer: score for mixer, score in table.rows[name].items() if score.mean is not None}
            places = {mixer: (sizes[mixer], row[mixer]) for mixer in look if mixer in row and mixer in sizes}
            panel = sheet.panel(" ".join(name))
            panel.set_xscale("log")
            explain |= _frontier(panel, places)
            _families(panel, places, look)
            explain |= accuracy_lines(panel, {mixer: [at] for mixer, at in places.items()}, look, APART_MARKERS)
            explain |= chance_line(panel, chances.get(name, np.nan))
            size_ticks(panel, [x for x, _ in places.values()], sheet.inside(per_line))
            panel.set_xlabel({"state_size": "state size (elements)", "num_params": "parameters"}[size])
        handles = legend_of(line_handles(look), explain)
        only = f"; against parameters only {AVERAGE}" if len(rows) > 1 and (AVERAGE,) in rows else ""
        under = with_intervals(f"sizes are means over the settings{only}; {CHOSEN[selection]}", sheet.panels)
        return sheet.arrange("Accuracy by state size and parameters", under, handles, per_line=per_line)


def _mean_sizes(scored: pd.DataFrame, name: tuple[str, ...], size: str) -> dict[str, float]:
    """By column of the tables, over the settings that a row of the table is about."""
    tasks = averaged(scored["task"]) if name == (AVERAGE,) else [name[0]]
    scored = scored[scored["task"].isin(tasks)]
    if len(name) > 1:
        scored = scored[scored["setting"] == name[1]]
    of_task = scored.groupby(["mixer", "task"])[size].mean()
    return {str(mixer): float(mean) for mixer, mean in of_task.groupby("mixer").mean().items()}


def _families(panel: Axes, places: Mapping[str, tuple[float, Score]], look: Mapping[str, Style]) -> None:
    """A thin line through the columns of each mixer that has several."""
    members: dict[str, list[str]] = {}
    for label in places:
        members.setdefault(mixer_of(label), []).append(label)
    for labels in members.values():
        if len(labels) > 1:
            line = sorted((places[label][0], places[label][1].mean) for label in labels)
            # The columns of a single mixer have no hue in common.
            colour = look[labels[len(labels) // 2]].colour if len(members) > 1 else "0.6"
            panel.plot(*zip(*line, strict=True), color=colour, linewidth=0.8, label="_family")


def _frontier(panel: Axes, places: Mapping[str, tuple[float, Score]]) -> Handles:
    """A line through what nothing smaller reaches, of whole scores."""
    best: list[tuple[float, float]] = []
    for x, score in sorted(places.values(), key=lambda place: (place[0], -(place[1].mean or 0))):
        if score.whole and score.mean is not None and (not best or score.mean > best[-1][1]):
            best.append((x, score.mean))
    if len(best) < 2:
        return {}
    look: dict[str, Any] = {"color": "0.7", "linewidth": 2.4, "solid_capstyle": "round"}
    panel.plot(*zip(*best, strict=True), zorder=1, drawstyle="steps-post", label="_frontier", **look)
    return {"frontier": Line2D([], [], label="Pareto frontier", **look)}
