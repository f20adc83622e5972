"""The figures of a report.

Accuracy is always on [0, 1], a column of the tables always has its colour, marker and hatch, and what has no score is
drawn as a cross instead of left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from mixerlab.sweeps.canvas import TICK, Sheet, looks, save, shortened, text_width
from mixerlab.sweeps.collect import REPORTED, Selection
from mixerlab.sweeps.files import read_metrics, run_folder
from mixerlab.sweeps.keys import Swept, short_names, shown
from mixerlab.sweeps.names import (
    BASELINE,
    TASKS,
    Style,
    axis_of,
    in_order,
    is_challenge,
    is_custom,
    mixer_of,
    origin_of,
    rank,
    sees_future,
    setting_rank,
    styles,
)
from mixerlab.sweeps.solved import interval
from mixerlab.sweeps.tables import AVERAGE, Score, Table, mean_of, score_of
from mixerlab.sweeps.ticks import loss_ticks, name_ticks, rate_ticks, size_ticks, value_ticks

__all__ = [
    "ACCURACY_LIMITS",
    "accuracy_by_key",
    "accuracy_by_size",
    "bars",
    "difficulty",
    "heat_map",
    "learning_rates",
    "lengths",
    "save",
    "training_curves",
]

CHOSEN = {
    "official": "learning rate and checkpoint chosen on test",
    "clean": "learning rate and checkpoint chosen on validation",
}
AXIS_LABELS = {
    "vocab_size": "vocabulary size",
    "seq_len": "sequence length (tokens)",
    "test_seq_len": "length of test rows (tokens)",
    "num_train_examples": "training examples",
    "frac_noise": "share of noise",
    "num_tokens_to_copy": "tokens to copy",
}
ACCURACY_LIMITS = (-0.05, 1.06)
# Of mixers at the same place the first is drawn largest and below, so that all are seen: points.
NESTED_MARKERS = (7.0, 2.8)
APART_MARKERS = (6.0, 4.4)  # of those that rarely lie at one place
MOST_PANELS = 12  # of a figure with one for each row of a table
NARROWEST_BAR = 0.058  # inches, with the gap beside it

_CHANCE_LOOK: dict[str, Any] = {"color": "0.45", "linestyle": (0, (2, 1.5)), "linewidth": 0.9}
_CHANCE = Line2D([], [], label="chance", **_CHANCE_LOOK)
_CROSS_LOOK: dict[str, Any] = {"marker": "x", "markersize": 4.5, "markeredgewidth": 1.2, "linestyle": "none"}
_INCOMPLETE = "incomplete mean"
_FUTURE = Line2D([], [], linestyle="none", label="‡ sees the future")

Handles = dict[str, Line2D | Patch]


def _cross_handle() -> Line2D:
    return Line2D([], [], color="0.3", label="no score", **_CROSS_LOOK)


def _hollow_handle() -> Line2D:
    return Line2D(
        [], [], color="0.3", marker="o", markersize=4.5, markerfacecolor="white", linestyle="none", label=_INCOMPLETE
    )


def bars(
    table: Table,
    title: str,
    selection: Selection,
    columns: int = 2,
    chances: Mapping[tuple[str, ...], float] | None = None,
) -> Figure:
    """Accuracy by row of the table, a bar per mixer, with its bootstrap interval over seeds if there are several.

    A mean that misses settings is hollow; an entry without any score is a cross. With so many mixers that bars would be
    too narrow, each row has a panel of its own. `chances` gives the chance level by row.
    """
    look = styles(table.mixers)
    handles: Handles = {
        mixer: Patch(facecolor=style.colour, edgecolor="white", linewidth=0, hatch=style.hatch or None, label=mixer)
        for mixer, style in look.items()
    }
    explain: Handles = {}
    with looks():
        sheet = Sheet(columns)
        count = len(table.mixers)
        names = ["\n".join(name) for name in table.rows]
        together = sheet.inside(1) / (len(names) * (count + 1.2)) >= NARROWEST_BAR
        widest = max(text_width(line, TICK) for name in names for line in name.split("\n"))
        together = together and widest < sheet.inside(1) / len(names)
        if together:
            panel = sheet.panel()
            for place, row in enumerate(table.rows.values()):
                explain |= _group(panel, place, row, look)
            panel.set_xticks(range(len(names)), names)
            panel.set_xlim(-0.55, len(names) - 0.45)
            per_line, below = 1, 0.24 if len(table.labels) == 1 else 0.34
        else:
            per_line = next((n for n in (4, 3, 2) if sheet.inside(n) / (count + 1.2) >= NARROWEST_BAR), 1)
            per_line, below = min(per_line, len(names)), 0.1
            for name, row in zip(names, table.rows.values(), strict=True):
                panel = sheet.panel(name.replace("\n", " "))
                explain |= _group(panel, 0, row, look)
                panel.set_xticks([])
                panel.set_xlim(-0.55, 0.55)
        for place, row_name in enumerate(table.rows):
            level = (chances or {}).get(row_name, np.nan)
            if not np.isnan(level):
                where = sheet.panels[0 if together else place]
                middle = place if together else 0
                where.plot([middle - 0.45, middle + 0.45], [level, level], zorder=3, **_CHANCE_LOOK)
                explain["chance"] = _CHANCE
        for panel in sheet.panels:
            panel.set_ylim(*ACCURACY_LIMITS)
        return sheet.arrange(
            title, CHOSEN[selection], _legend_of(handles, explain), per_line=per_line, below=below,
            height=1.5 if together else 0.95,
        )  # fmt: skip


def _group(panel: Axes, place: float, row: Mapping[str, Score], look: Mapping[str, Style]) -> Handles:
    """The bars of one row around `place`; returns what the legend must explain."""
    explain: Handles = {}
    width = min(0.3, 0.88 / len(look))
    for number, (mixer, style) in enumerate(look.items()):
        score, x = row[mixer], place + (number - (len(look) - 1) / 2) * width
        if score.mean is None:
            panel.plot(x, 0.0, color=style.colour, zorder=4, **_CROSS_LOOK)
            explain["cross"] = _cross_handle()
            continue
        if not score.complete:
            explain["hollow"] = Patch(facecolor="white", edgecolor="0.3", linewidth=0.8, label=_INCOMPLETE)
        panel.bar(
            x, score.mean, 0.9 * width, label=mixer, hatch=style.hatch or None,
            color=style.colour if score.complete else "white", edgecolor="white" if score.complete else style.colour,
            linewidth=0 if score.complete else 0.8,
        )  # fmt: skip
        _interval(panel, x, score.by_seed, "0.15")
    return explain


def _interval(panel: Axes, x: float, by_seed: Mapping[int, float], colour: str) -> None:
    if (bounds := interval(list(by_seed.values()))) is not None:
        panel.plot(
            [x, x], bounds, color=colour, linewidth=0.9, zorder=3.5, marker="_", markersize=2.5, label="_interval"
        )


def difficulty(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, columns: int = 2) -> Figure | None:
    """Accuracy against each axis of difficulty, the baseline included: a panel per task and axis.

    `frame` (one row per replica) gives the value of the axis at the baseline, `cells` the accuracies. None if no task
    has an axis.
    """
    return _by_axis(frame, cells, "Accuracy by difficulty", selection, columns, None)


def lengths(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, columns: int = 2) -> Figure | None:
    """Accuracy against the length of the sequences: trained at each, or tested at others than trained at.

    None if no task has several lengths.
    """
    return _by_axis(frame, cells, "Accuracy by length", selection, columns, ("seq_len", "test_seq_len"))


def _by_axis(
    frame: pd.DataFrame, cells: pd.DataFrame, title: str, selection: Selection, columns: int, only: Sequence[str] | None
) -> Figure | None:
    axes_of = _axes_by_task(cells, only)
    if not axes_of:
        return None
    look = styles(cells["mixer"])
    most = max(map(len, axes_of.values())) if only is None else sum(map(len, axes_of.values()))
    per_line = min({1: 2, 2: 4}[columns], most)
    explain: Handles = {}
    lines: list[list[Axes]] = []
    with looks():
        sheet = Sheet(columns)
        for task, axes in axes_of.items():
            of_task: list[Axes] = []
            for axis in axes:
                origin, key = origin_of(axis)
                panel = sheet.panel(task if origin == BASELINE else f"{task} {origin}")
                points, chances = _along(frame, cells[cells["task"] == task], axis)
                explain |= _accuracy_lines(panel, points, look) | _chance_line(panel, chances)
                value_ticks(panel, sorted(chances), sheet.inside(per_line))
                panel.set_xlabel(AXIS_LABELS.get(key, key))
                of_task.append(panel)
            if only is None:  # each task begins a line
                lines += [of_task[first : first + per_line] for first in range(0, len(of_task), per_line)]
        if len(sheet.panels) < 0.7 * len(lines) * per_line:  # half of the sheet would stay empty
            lines, per_line = [], min({1: 2, 2: 4}[columns], len(sheet.panels))
        handles = _legend_of(_line_handles(look), explain)
        return sheet.arrange(title, CHOSEN[selection], handles, lines or None, per_line)


def learning_rates(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, columns: int = 2) -> Figure:
    """Accuracy by learning rate for each task, averaged over its settings.

    Of each cell the configuration of its best entry; a mean over fewer settings than there are is hollow.
    """
    look, tasks = styles(cells["mixer"]), in_order(cells["task"], TASKS)
    tried: dict[tuple[str, str, str], dict[float, dict[int, float | None]]] = {}
    configs = {(cell.mixer, cell.task, cell.setting): cell.config for cell in cells.itertuples() if cell.n}
    columns_read = ["mixer", "task", "setting", "config", "lr", "seed", "status", REPORTED[selection]]
    for *cell, config, lr, seed, status, accuracy in frame[columns_read].itertuples(index=False):
        place: Any = tuple(cell)
        if configs.get(place, config) == config:
            of_rate = tried.setdefault(place, {}).setdefault(lr, {})
            of_rate[seed] = accuracy if status == "finished" else of_rate.get(seed)
    per_line = min({1: 2, 2: 4}[columns], len(tasks))
    explain: Handles = {}
    with looks():
        sheet = Sheet(columns)
        for task in tasks:
            panel, settings = sheet.panel(task), cells.loc[cells["task"] == task, "setting"].unique()
            points = {}
            for mixer in look:
                of_mixer = [tried.get((mixer, task, setting), {}) for setting in settings]
                rates = sorted({lr for of_setting in of_mixer for lr in of_setting})
                points[mixer] = [(lr, mean_of(_score(of.get(lr, {})) for of in of_mixer)) for lr in rates]
            explain |= _accuracy_lines(panel, points, look)
            explain |= _chance_line(panel, mean_chances(cells).get(task, np.nan))
            rate_ticks(
                panel, sorted({lr for of_mixer in points.values() for lr, _ in of_mixer}), sheet.inside(per_line)
            )
            panel.set_xlabel("learning rate")
        handles = _legend_of(_line_handles(look), explain)
        how = CHOSEN[selection].removeprefix("learning rate and ")
        under = f"mean over the settings of each task, {how}"
        return sheet.arrange("Accuracy by learning rate", under, handles, per_line=per_line)


def accuracy_by_key(
    swept: Swept, table: Table, cells: pd.DataFrame, selection: Selection, key: str, columns: int = 2
) -> Figure | None:
    """Accuracy against a swept key: a panel per row of the table, a line per mixer and values of the other keys.

    None if no line has two values.
    """
    of_key = {label: column for label, column in swept.columns.items() if label in table.mixers}
    values = {shown(column.values[key]) for column in of_key.values()}
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
    look = styles(series)
    places, numeric = _places(values)
    chances = mean_chances(cells)
    rows = [name for name in table.rows if len(table.rows) <= MOST_PANELS or name == (AVERAGE,)]
    per_line = min({1: 2, 2: 4}[columns], len(rows))
    explain: Handles = {}
    with looks():
        sheet = Sheet(columns)
        for name in rows:
            panel = sheet.panel(" ".join(name))
            points = {
                line: sorted((places[value], table.rows[name][label]) for value, label in members)
                for line, members in series.items()
            }
            explain |= _accuracy_lines(panel, points, look) | _chance_line(panel, chances.get(name[0], np.nan))
            if numeric:
                value_ticks(panel, sorted(places.values()), sheet.inside(per_line))
            else:
                name_ticks(panel, places, sheet.inside(per_line))
            panel.set_xlabel(short[key])
        handles = _legend_of(_line_handles(look), explain)
        return sheet.arrange(f"Accuracy by {short[key]}", CHOSEN[selection], handles, per_line=per_line)


def accuracy_by_size(table: Table, cells: pd.DataFrame, selection: Selection, columns: int = 2) -> Figure | None:
    """Accuracy against state size, a panel per row of the table, and against parameters for the last; None: no scores.

    A size is the mean over the settings of the row that have a score. Lines join the columns of one mixer; the grey
    steps join what nothing smaller reaches.
    """
    scored = cells[cells["n"] > 0]
    if scored.empty:
        return None
    look, chances = styles(table.mixers), mean_chances(cells)
    panels = [(name, "state_size") for name in table.rows] + [(list(table.rows)[-1], "num_params")]
    if len(panels) > MOST_PANELS:
        panels = panels[-2:]
    per_line = min({1: 2, 2: 4}[columns], len(panels))
    explain: Handles = {}
    with looks():
        sheet = Sheet(columns)
        for name, size in panels:
            sizes = _mean_sizes(scored, name, size)
            row = {mixer: score for mixer, score in table.rows[name].items() if score.mean is not None}
            places = {mixer: (sizes[mixer], row[mixer]) for mixer in look if mixer in row and mixer in sizes}
            panel = sheet.panel(" ".join(name))
            panel.set_xscale("log")
            explain |= _frontier(panel, places)
            _families(panel, places, look)
            explain |= _accuracy_lines(panel, {mixer: [at] for mixer, at in places.items()}, look, APART_MARKERS)
            explain |= _chance_line(panel, chances.get(name[0], np.nan))
            size_ticks(panel, [x for x, _ in places.values()])
            panel.set_xlabel({"state_size": "state size (elements)", "num_params": "parameters"}[size])
        handles = _legend_of(_line_handles(look), explain)
        under = f"sizes are means over the settings; {CHOSEN[selection]}"
        return sheet.arrange("Accuracy by state size and parameters", under, handles, per_line=per_line)


def _mean_sizes(scored: pd.DataFrame, name: tuple[str, ...], size: str) -> dict[str, float]:
    """By column of the tables, over the settings that a row of the table is about."""
    if name != (AVERAGE,):
        scored = scored[scored["task"] == name[0]]
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
            panel.plot(*zip(*line, strict=True), color=look[labels[-1]].colour, linewidth=0.8, label="_family")


def heat_map(table: Table, selection: Selection, columns: int = 2) -> Figure:
    """Accuracy of each setting (rows) and mixer (columns), as colours and, where they fit, as numbers."""
    names = [" ".join(name) for name in table.rows]
    values = np.array(
        [
            [np.nan if row[mixer].mean is None else row[mixer].mean for mixer in table.mixers]
            for row in table.rows.values()
        ]
    )
    with looks():
        sheet = Sheet(columns)
        panel = sheet.panel()
        labels = [shortened(name, 34 if columns == 2 else 26) for name in names]
        left = 0.12 + max(text_width(label, TICK) for label in labels)
        wide = sheet.inside(1, left)
        cell, line = wide / len(table.mixers), 0.125
        mixers = [shortened(mixer, 30) for mixer in table.mixers]
        widest = max(text_width(mixer, TICK) for mixer in mixers)
        upright = widest > cell - 0.04
        above = 0.08 + (widest if upright else TICK * 1.3 / 72)
        panel.pcolormesh(values, cmap="cividis", vmin=0, vmax=1, edgecolor="white", linewidth=0.4)
        for y, x in np.argwhere(np.isnan(values)):
            panel.plot(x + 0.5, y + 0.5, color="0.4", markersize=3.5, marker="x", markeredgewidth=0.8)
        if cell >= text_width("0.00", TICK - 0.5) + 0.03:
            for y, x in np.argwhere(~np.isnan(values)):
                ink = "white" if values[y, x] < 0.6 else "black"
                text = f"{values[y, x]:.2f}".replace("0.", ".") if values[y, x] < 0.995 else "1.0"
                panel.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=TICK - 0.5, color=ink)
        tasks = [name[0] for name in table.rows]
        for y in (y for y in range(1, len(tasks)) if tasks[y] != tasks[y - 1]):
            panel.axhline(y, color="white", linewidth=2.5)
        panel.invert_yaxis()
        panel.grid(visible=False)
        panel.set_yticks(np.arange(len(names)) + 0.5, labels)
        panel.xaxis.tick_top()
        panel.set_xticks(np.arange(len(mixers)) + 0.5, mixers, rotation=90 if upright else 0)
        panel.tick_params(length=0)
        for side in panel.spines.values():
            side.set_visible(False)
        handles: list[Line2D | Patch] = [
            Patch(facecolor=colormaps["cividis"](level), label=f"{level:g}") for level in (0.0, 0.25, 0.5, 0.75, 1.0)
        ]
        if np.isnan(values).any():
            handles.append(Line2D([], [], color="0.4", marker="x", linestyle="none", markersize=3.5, label="no score"))
        handles += [_FUTURE] if any(map(sees_future, table.mixers)) else []
        return sheet.arrange(
            "Accuracy by setting", CHOSEN[selection], handles, height=line * len(names), left=left, below=0.08,
            ylabels=("",), above=above,
        )  # fmt: skip


def training_curves(results_dir: str | Path, cells: pd.DataFrame, selection: Selection, columns: int = 2) -> Figure:
    """Accuracy and, below, training loss (nats) by epoch, for each task, at the best learning rate.

    Of each task its baseline, or its first setting if it has none. Several seeds are their mean and range. Accuracy is
    on test (`official`) or on validation (`clean`).
    """
    split = {"official": "test", "clean": "val"}[selection]
    look, tasks = styles(cells["mixer"]), in_order(cells["task"], TASKS)
    per_line = min({1: 2, 2: 4}[columns], len(tasks))
    explain: Handles = {}
    with looks():
        sheet = Sheet(columns)
        above, below = [], []
        for task in tasks:
            of_task = cells[cells["task"] == task]
            setting = min(of_task["setting"], key=setting_rank)
            of_setting = of_task[of_task["setting"] == setting]
            named = "own sizes" if is_custom(setting) else setting  # the parameters would not fit
            accuracy, loss = sheet.panel(task if setting == BASELINE else f"{task}, {named}"), sheet.panel()
            metrics, without = _metrics_of(results_dir, of_setting)
            _curves(accuracy, metrics, f"{split}_accuracy", look)
            _curves(loss, metrics, "train_loss", look)
            explain |= _chance_line(accuracy, float(of_setting["chance"].iloc[0]))
            if without:
                names = f"no curve: {', '.join(without)}" if len(without) < 4 else f"no curve of {len(without)}"
                accuracy.text(
                    0.97,
                    0.06,
                    shortened(names, 30),
                    transform=accuracy.transAxes,
                    ha="right",
                    fontsize=TICK,
                    color="0.4",
                )
            accuracy.set_ylim(*ACCURACY_LIMITS)
            loss.set_yscale("log")
            loss.set_xlabel("epoch")
            above.append(accuracy)
            below.append(loss)
        _same_limits(below)
        for panel in below:
            loss_ticks(panel)
        lines = []
        for first in range(0, len(tasks), per_line):
            lines += [above[first : first + per_line], below[first : first + per_line]]
        ylabels = (f"accuracy on {split}", "training loss (nats)")
        handles = _legend_of(_line_handles(look), explain)
        return sheet.arrange(
            "Training curves", CHOSEN[selection], handles, lines, per_line, ylabels, height=0.85, below=0.34
        )


def _score(by_seed: Mapping[int, float | None]) -> Score:
    """Of one setting, from the accuracy of each seed; None: it has none."""
    scored = {seed: accuracy for seed, accuracy in by_seed.items() if accuracy is not None}
    if not scored:
        return Score(None, {}, 0, 1, 0, "missing")
    return Score(fmean(scored.values()), scored, 1, 1, 0, "ok")


def _line_handles(look: Mapping[str, Style]) -> Handles:
    return {
        mixer: Line2D([], [], color=style.colour, marker=style.marker, markersize=4.5, label=mixer)
        for mixer, style in look.items()
    }


def _legend_of(mixers: Handles, explain: Handles) -> list[Line2D | Patch]:
    """The mixers, then what else there is to explain."""
    future = {"future": _FUTURE} if any(map(sees_future, mixers)) else {}
    return [*mixers.values(), *(explain | future).values()]


def _accuracy_lines(
    panel: Axes,
    points: Mapping[str, Sequence[tuple[float, Score]]],
    look: Mapping[str, Style],
    markers: tuple[float, float] = NESTED_MARKERS,
) -> Handles:
    """A line per mixer through its accuracies, with their intervals over seeds; returns what the legend must explain.

    A mean over fewer settings than there are is hollow, one over none is a cross at zero. Points stand at their places:
    where several mixers reach the same, the markers lie on each other from large to small.
    """
    explain: Handles = {}
    largest, smallest = markers
    step = (largest - smallest) / max(4, len(look) - 1)
    for number, (mixer, style) in enumerate(look.items()):
        of_mixer = points.get(mixer, ())
        if not of_mixer:
            continue
        size = largest - number * step
        means = [np.nan if score.mean is None else score.mean for _, score in of_mixer]
        panel.plot(
            [x for x, _ in of_mixer], means, color=style.colour, label=mixer, marker=style.marker, markersize=size,
            markeredgewidth=0,
        )  # fmt: skip
        if crosses := [x for x, score in of_mixer if score.mean is None]:
            panel.plot(crosses, [0.0] * len(crosses), color=style.colour, zorder=4, label="_cross", **_CROSS_LOOK)
            explain["cross"] = _cross_handle()
        hollow = [(x, score.mean) for x, score in of_mixer if score.mean is not None and not score.complete]
        if hollow:
            panel.plot(
                *zip(*hollow, strict=True), color=style.colour, linestyle="none", marker=style.marker, markersize=size,
                markerfacecolor="white", label="_hollow",
            )  # fmt: skip
            explain["hollow"] = _hollow_handle()
        for x, score in of_mixer:
            _interval(panel, x, score.by_seed, style.colour)
    panel.set_ylim(*ACCURACY_LIMITS)
    return explain


def _chance_line(panel: Axes, level: float | Mapping[float, float]) -> Handles:
    """The accuracy of a guess, one for the panel or by x; nothing where it is not known."""
    if not isinstance(level, Mapping):
        if np.isnan(level):
            return {}
        panel.axhline(level, zorder=1.5, label="_chance", **_CHANCE_LOOK)
        return {"chance": _CHANCE}
    known = [(x, chance) for x, chance in sorted(level.items()) if not np.isnan(chance)]
    if not known:
        return {}
    panel.plot(*zip(*known, strict=True), zorder=1.5, label="_chance", **_CHANCE_LOOK)
    return {"chance": _CHANCE}


def mean_chances(cells: pd.DataFrame) -> dict[str, float]:
    """The mean over the settings of each task, and over the tasks; NaN if one is not known."""
    of_setting = cells.drop_duplicates(["task", "setting"])
    found = {task: float(group["chance"].mean(skipna=False)) for task, group in of_setting.groupby("task")}
    averaged = [chance for task, chance in found.items() if task in TASKS] or list(found.values())
    return found | {AVERAGE: float(np.mean(averaged)) if averaged else np.nan}


def _frontier(panel: Axes, places: Mapping[str, tuple[float, Score]]) -> Handles:
    """A line through what nothing smaller reaches, of complete scores."""
    best: list[tuple[float, float]] = []
    for x, score in sorted(places.values(), key=lambda place: (place[0], -(place[1].mean or 0))):
        if score.complete and score.mean is not None and (not best or score.mean > best[-1][1]):
            best.append((x, score.mean))
    if len(best) < 2:
        return {}
    look: dict[str, Any] = {"color": "0.7", "linewidth": 2.4, "solid_capstyle": "round"}
    panel.plot(*zip(*best, strict=True), zorder=1, drawstyle="steps-post", label="_frontier", **look)
    return {"frontier": Line2D([], [], label="none smaller is better", **look)}


def _axes_by_task(cells: pd.DataFrame, only: Sequence[str] | None) -> dict[str, list[str]]:
    found = {}
    for task in in_order(cells["task"], TASKS):
        names = cells.loc[cells["task"] == task, "setting"].map(axis_of).dropna()
        axes = in_order((axis for axis, _ in names if only is None or origin_of(axis)[1] in only), tuple(AXIS_LABELS))
        if axes and not is_challenge(task):
            found[task] = axes
    return found


def _along(
    frame: pd.DataFrame, of_task: pd.DataFrame, axis: str
) -> tuple[dict[str, list[tuple[float, Score]]], dict[float, float]]:
    """By mixer the scores along one axis of a task, with its origin at its own value; and chance by value."""
    task = of_task["task"].iloc[0]
    origin, key = origin_of(axis)
    column = "task.seq_len" if key == "test_seq_len" else f"task.{key}"
    known = frame.loc[(frame["task"] == task) & (frame["setting"] == origin), column] if column in frame else []
    known = pd.to_numeric(pd.Series(known, dtype=object), errors="coerce").dropna()  # a stranger's may be anything
    points: dict[str, list[tuple[float, Score]]] = {}
    chances: dict[float, float] = {}
    for cell in of_task.itertuples():
        if cell.setting == origin and len(known):
            x = float(known.iloc[0])
        elif (place := axis_of(cell.setting)) and place[0] == axis:
            x = place[1]
        else:
            continue
        points.setdefault(cell.mixer, []).append((x, score_of(cell)))
        chances[x] = float(cell.chance)
    return {mixer: sorted(found, key=lambda point: point[0]) for mixer, found in points.items()}, chances


def _places(values: Iterable[str]) -> tuple[dict[str, float], bool]:
    """Where the values of a key stand: at their numbers, or in order if they are no numbers."""
    try:
        return {value: float(value) for value in values}, True
    except ValueError:
        return {
            value: float(place) for place, value in enumerate(sorted(values, key=lambda value: rank(value, ())))
        }, False


def _same_limits(panels: Sequence[Axes]) -> None:
    limits = [panel.get_ylim() for panel in panels if panel.lines]
    for panel in panels if limits else ():
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _metrics_of(results_dir: str | Path, of_setting: pd.DataFrame) -> tuple[dict[str, list[pd.DataFrame]], list[str]]:
    """By mixer the curve of each replica of its best learning rate, and the mixers without any."""
    found: dict[str, list[pd.DataFrame]] = {}
    without = []
    for cell in of_setting.itertuples():
        for run_id, replica in cell.replicas:
            try:
                metrics = read_metrics(run_folder(results_dir, run_id))
            except ValueError:  # which `sweeps.collect` has put among the unreadable
                continue
            if metrics is not None:
                found.setdefault(cell.mixer, []).append(metrics[metrics["replica"] == replica])
        if cell.mixer not in found:
            without.append(cell.mixer)
    return found, without


def _curves(panel: Axes, metrics: Mapping[str, Sequence[pd.DataFrame]], column: str, look: Mapping[str, Style]) -> None:
    """One line per mixer: the mean over its replicas, and their range."""
    for mixer, replicas in metrics.items():
        curve = pd.concat(replicas).groupby("epoch")[column].agg(["mean", "min", "max"])
        # Markers at every fifth of a curve's length; a single point has none.
        every, size = (0.2, 3) if len(curve) > 1 else (1, 4.5)
        style = look[mixer]
        panel.plot(
            curve.index, curve["mean"], color=style.colour, label=mixer, marker=style.marker, markersize=size,
            markevery=every, markeredgewidth=0,
        )  # fmt: skip
        if len(replicas) > 1:
            panel.fill_between(curve.index, curve["min"], curve["max"], color=style.colour, alpha=0.2, linewidth=0)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4, min_n_ticks=1))
