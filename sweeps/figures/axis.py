"""Accuracy against what was varied: difficulty, length, learning rate, or any key that was swept."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import TASKS, axis_of, in_order, is_challenge, origin_of, rank
from mixerlab.sweeps.figures.canvas import TALLEST, TWO_COLUMNS, Layout, Sheet, even_lines, looks
from mixerlab.sweeps.figures.marks import (
    CHOSEN,
    Handles,
    chance_line,
    dodged_lines,
    legend_of,
    line_handles,
    rows_with_panels,
    setting_title,
    with_intervals,
)
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.figures.ticks import name_ticks, rate_ticks, value_ticks
from mixerlab.sweeps.tables.chance import chances_of_rows, mean_chances
from mixerlab.sweeps.tables.collect import REPORTED
from mixerlab.sweeps.tables.keys import Swept, short_names, shown
from mixerlab.sweeps.tables.lengths import length_of_training
from mixerlab.sweeps.tables.tables import Score, Table, mean_of, score_of

MOST_LINES = 6  # of panels on a page
AXIS_LABELS = {
    "vocab_size": "vocabulary size",
    "seq_len": "sequence length (tokens)",
    "test_seq_len": "test length (tokens)",
    "num_train_examples": "training examples",
    "frac_noise": "share of noise",
    "num_tokens_to_copy": "tokens to copy",
}


def difficulty(
    frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout = TWO_COLUMNS
) -> Figure | None:
    """Accuracy against each axis of difficulty, the baseline included: a panel per task and axis.

    `frame` (one row per replica) gives the value of the axis at the baseline, `cells` the accuracies. None if no task
    has an axis.
    """
    return _by_axis(frame, cells, "Accuracy by difficulty", selection, layout, None)


def lengths(
    frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout = TWO_COLUMNS
) -> Figure | None:
    """Accuracy against the length of the sequences: trained at each, or tested at others than trained at.

    None if no task has several lengths.
    """
    return _by_axis(frame, cells, "Accuracy by length", selection, layout, ("seq_len", "test_seq_len"))


@dataclass(frozen=True)
class _Axis:
    """What a panel shows of a task: the scores of each mixer along one key of its settings."""

    task: str
    origin: str  # the setting from which it departs
    key: str
    points: dict[str, list[tuple[float, Score]]]  # by mixer, (value of the key, score)
    chances: dict[float, float]  # by value of the key


def _by_axis(
    frame: pd.DataFrame,
    cells: pd.DataFrame,
    title: str,
    selection: Selection,
    layout: Layout,
    only: Sequence[str] | None,
) -> Figure | None:
    by_task = _axes_by_task(frame, cells, only)
    if not by_task:
        return None
    look = styles(cells["mixer"])
    total = sum(map(len, by_task))
    explain: Handles = {}
    panels: list[list[Axes]] = []
    with looks():
        sheet = Sheet(layout)
        per_line = sheet.per_line(max(map(len, by_task)))
        lines = sum(-(-len(axes) // per_line) for axes in by_task)
        # Each task begins a line, unless much of the sheet would stay empty or that takes more than a page.
        packed = only is not None or lines > MOST_LINES or total < 0.7 * lines * per_line
        if packed:
            per_line = sheet.per_line(total)
            if -(-total // per_line) > MOST_LINES:
                per_line = even_lines(total, sheet.most + 1)
        # The subtitle, if there is one, has the unit of lengths, for short labels.
        in_tokens = not layout.bare and (only is not None or per_line > sheet.most)
        side_by_side = False
        for axes in by_task:
            first = len(sheet.panels)
            for axis in axes:
                panel = sheet.panel(setting_title(axis.task, axis.origin))
                value_ticks(panel, sorted(axis.chances), sheet.inside(per_line))
                handles, is_apart = dodged_lines(panel, axis.points, look)
                explain |= handles | chance_line(panel, axis.chances)
                side_by_side |= is_apart
                panel.set_xlabel(_axis_label(frame, axis, with_unit=not in_tokens))
            of_task = sheet.panels[first:]
            panels += [of_task[start : start + per_line] for start in range(0, len(of_task), per_line)]
        under = CHOSEN[selection]
        if in_tokens:
            under = f"lengths in tokens; {under}"
        if only is not None and any(axis.key == "test_seq_len" for axes in by_task for axis in axes):
            under += {"official": ", at each length", "clean": ", which has the length of training"}[selection]
        under = with_intervals(under, sheet.panels, side_by_side)
        legend = legend_of(line_handles(look), explain)
        return sheet.arrange(title, under, legend, None if packed else panels, per_line, tallest=TALLEST)


def _axis_label(frame: pd.DataFrame, axis: _Axis, with_unit: bool) -> str:
    trained = length_of_training(frame, axis.task, axis.origin) if axis.key == "test_seq_len" else None
    if trained is not None:
        return f"test length (trained at {trained})"
    label = AXIS_LABELS.get(axis.key, axis.key)
    return label if with_unit else label.removesuffix(" (tokens)")


def _axes_by_task(frame: pd.DataFrame, cells: pd.DataFrame, only: Sequence[str] | None) -> list[list[_Axis]]:
    """Of each task that has any, the axes with at least two values."""
    found = []
    for task in in_order((task for task in cells["task"] if not is_challenge(task)), TASKS):
        of_task = cells[cells["task"] == task]
        names = [place[0] for setting in of_task["setting"].unique() if (place := axis_of(setting)) is not None]
        names = in_order((name for name in names if only is None or origin_of(name)[1] in only), tuple(AXIS_LABELS))
        axes = [_along(frame, of_task, name) for name in names]
        if axes := [axis for axis in axes if len(axis.chances) > 1]:
            found.append(axes)
    return found


def _along(frame: pd.DataFrame, of_task: pd.DataFrame, name: str) -> _Axis:
    """The scores along one axis of a task, with its origin at its own value."""
    task = str(of_task["task"].iloc[0])
    origin, key = origin_of(name)
    column = "task.seq_len" if key == "test_seq_len" else f"task.{key}"
    known = frame.loc[(frame["task"] == task) & (frame["setting"] == origin), column] if column in frame else []
    known = pd.to_numeric(pd.Series(known, dtype=object), errors="coerce").dropna()  # a stranger's may be anything
    points: dict[str, list[tuple[float, Score]]] = {}
    chances: dict[float, float] = {}
    for cell in of_task.itertuples():
        if cell.setting == origin and len(known):
            x = float(known.iloc[0])
        elif (place := axis_of(cell.setting)) and place[0] == name:
            x = place[1]
        else:
            continue
        points.setdefault(cell.mixer, []).append((x, score_of(cell)))
        chances[x] = float(cell.chance)
    ordered = {mixer: sorted(found, key=lambda point: point[0]) for mixer, found in points.items()}
    return _Axis(task, origin, key, ordered, chances)


def learning_rates(
    frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout = TWO_COLUMNS
) -> Figure | None:
    """Accuracy by learning rate for each task, averaged over its settings; None if there is only one learning rate.

    Of each cell the configuration of its best entry. Hollow is a mean that misses settings, or seeds that a setting has
    at any rate. A mixer's rates that only some of its settings were run at are left out: where a grid was widened for
    single settings, their mean says which settings these are. In a panel where several mixers have an interval at one
    rate, mixers stand side by side.
    """
    if frame["lr"].nunique() < 2:
        return None
    look, tasks = styles(cells["mixer"]), in_order(cells["task"], TASKS)
    tried: dict[tuple[str, str, str], dict[float, dict[int, float | None]]] = {}
    configs = {(cell.mixer, cell.task, cell.setting): cell.config for cell in cells.itertuples() if cell.n}
    columns_read = ["mixer", "task", "setting", "config", "lr", "seed", "status", REPORTED[selection]]
    for *cell, config, lr, seed, status, accuracy in frame[columns_read].itertuples(index=False):
        place: Any = tuple(cell)
        if configs.get(place, config) == config:
            of_rate = tried.setdefault(place, {}).setdefault(lr, {})
            of_rate[seed] = accuracy if status == "finished" else of_rate.get(seed)
    explain: Handles = {}
    left_out = side_by_side = False
    with looks():
        sheet = Sheet(layout)
        per_line = sheet.per_line(len(tasks))
        for task in tasks:
            panel, settings = sheet.panel(task), cells.loc[cells["task"] == task, "setting"].unique()
            points = {}
            for mixer in look:
                of_mixer = [tried.get((mixer, task, setting), {}) for setting in settings]
                run_at = Counter(lr for of_setting in of_mixer for lr in of_setting)
                of_all = sorted(lr for lr, number in run_at.items() if number == max(run_at.values()))
                left_out |= len(of_all) < len(run_at)
                points[mixer] = [(lr, mean_of(_score(of, lr) for of in of_mixer)) for lr in of_all]
            rates = sorted({lr for of_mixer in points.values() for lr, _ in of_mixer})
            rate_ticks(panel, rates, sheet.inside(per_line))
            handles, is_apart = dodged_lines(panel, points, look)
            explain |= handles | chance_line(panel, mean_chances(cells).get(task, np.nan))
            side_by_side |= is_apart
            panel.set_xlabel("learning rate")
        how = CHOSEN[selection].removeprefix("learning rate and ")
        without = ", without rates that only some of them have" if left_out else ""
        under = f"mean over the settings of each task{without}; {how}"
        under = with_intervals(under, sheet.panels, side_by_side)
        legend = legend_of(line_handles(look), explain)
        return sheet.arrange("Accuracy by learning rate", under, legend, per_line=per_line)


def _score(of_setting: Mapping[float, Mapping[int, float | None]], lr: float) -> Score:
    """Of one setting at a rate, from the accuracy by rate and seed (None: it has none).

    Some are lost unless it has all seeds: the mean over those that did not diverge is higher by luck.
    """
    seeds = {seed for of_rate in of_setting.values() for seed in of_rate}
    scored = {seed: score for seed, score in of_setting.get(lr, {}).items() if score is not None}
    if not scored:
        return Score(None, {}, 0, 1, 0, "missing")
    lost = ((len(scored), len(seeds)),) if len(scored) < len(seeds) else ()
    return Score(fmean(scored.values()), scored, 1, 1, 0, "ok", lost=lost)


def accuracy_by_key(
    swept: Swept, table: Table, cells: pd.DataFrame, selection: Selection, key: str, layout: Layout = TWO_COLUMNS
) -> Figure | None:
    """Accuracy against a swept key: a panel per row (`rows_with_panels`), a line per mixer and other keys.

    Values that are no numbers have no order, and no line joins their points.

    None if no line has two values.
    """
    of_key = {label: column for label, column in swept.columns.items() if label in table.mixers}
    others = [other for other in swept.keys if other != key]
    short = short_names(swept.keys)
    series: dict[str, list[tuple[str, str]]] = {}  # line -> (value, column of the table)
    for label, column in of_key.items():
        parts = [f"{short[other]}={shown(column.values[other])}" for other in others]
        told = [part for part in parts if f", {part}, " in f"{label}, "]  # a value may have a comma too
        mixer = label.partition(", ")[0]
        series.setdefault(", ".join([mixer, *told]), []).append((shown(column.values[key]), label))
    series = {line: members for line, members in series.items() if len({value for value, _ in members}) > 1}
    if not series:
        return None
    look = styles(series, beside=table.mixers)
    places, numeric = _places({value for members in series.values() for value, _ in members})
    rows, chances = rows_with_panels(table), chances_of_rows(cells, table)
    explain: Handles = {}
    side_by_side = False
    with looks():
        sheet = Sheet(layout)
        per_line = sheet.per_line(len(rows))
        for name in rows:
            panel = sheet.panel(" ".join(name))
            points = {
                line: sorted((places[value], table.rows[name][label]) for value, label in members)
                for line, members in series.items()
            }
            if numeric:
                value_ticks(panel, sorted(places.values()), sheet.inside(per_line))
            else:
                name_ticks(panel, places, sheet.inside(per_line))
            handles, is_apart = dodged_lines(panel, points, look, joined=numeric)
            explain |= handles | chance_line(panel, chances.get(name, np.nan))
            side_by_side |= is_apart
            panel.set_xlabel(short[key])
        under = with_intervals(CHOSEN[selection], sheet.panels, side_by_side)
        legend = legend_of(line_handles(look, joined=numeric), explain)
        return sheet.arrange(f"Accuracy by {short[key]}", under, legend, per_line=per_line)


def _places(values: Iterable[str]) -> tuple[dict[str, float], bool]:
    """Where the values of a key stand: at their numbers, or in order if they are no numbers."""
    try:
        return {value: float(value) for value in values}, True
    except ValueError:
        return {
            value: float(place) for place, value in enumerate(sorted(values, key=lambda value: rank(value, ())))
        }, False
