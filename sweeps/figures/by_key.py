"""Scores against what was swept: learning rates, and any other key."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import AVERAGE, natural
from mixerlab.sweeps.figures.axis import Panel, draw_panels
from mixerlab.sweeps.figures.points import Point, chances, mean_point, score_name, seeds_point, task_points
from mixerlab.sweeps.figures.sheet import Layout
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.columns import Column, short_names

Cell = tuple[Column, str, str]  # column, task, setting
Rates = dict[float, dict[int, float | None]]  # of a cell: its scores by learning rate and seed, None where it has none


def score_by_key(
    cells: pd.DataFrame, keys: Sequence[str], key: str, selection: Selection, layout: Layout
) -> Figure | None:
    """The mean score of each task against one of the swept keys: a line for each column without this key.

    Values that are no numbers have no order, and no line joins their points. None if no line has two values.
    """
    lines: dict[Column, dict[str, Column]] = {}
    for column in cells["column"].unique():
        if (text := column.value(key)) is not None:
            lines.setdefault(column.without([key]), {})[text] = column
    lines = {line: columns for line, columns in lines.items() if len(columns) > 1}
    if not lines:
        return None
    texts = sorted({text for columns in lines.values() for text in columns}, key=natural)
    try:
        places, names = {text: float(text) for text in texts}, []
    except ValueError:
        places, names = {text: float(place) for place, text in enumerate(texts)}, texts
    rows, short = task_points(cells), short_names(keys)[key]
    guesses = chances(cells, rows)
    panels = [
        Panel(
            " ".join(name),
            short,
            {line: {places[text]: row[column] for text, column in columns.items()} for line, columns in lines.items()},
            {0: guesses[name]},
            names,
        )
        for name, row in rows.items()
    ]
    look = styles(lines, among=cells["column"])
    return draw_panels(panels, look, cells, selection, f"by {short}", layout, joined=not names)


def learning_rates(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure | None:
    """The score by learning rate for each task, averaged over its settings; None if there is only one learning rate.

    Of each cell the configuration of its best entry. Hollow is a mean that misses settings, or seeds that a setting has
    at any rate. Rates that only some settings of a column were run at are left out: where a grid was widened for single
    settings, their mean says which settings these are.

    Args:
        frame: as `spread_out` gives it.
        cells: as `best_per_cell` gives them.
    """
    if frame["lr"].nunique() < 2:
        return None
    tried, rows = _tried(frame, cells, selection), task_points(cells)
    guesses = chances(cells, rows)
    panels, left_out = [], False
    for (task,), row in rows.items():
        settings = cells.loc[cells["task"] == task, "setting"].unique()
        points: dict[Column, dict[float, Point]] = {}
        for column in row if task != AVERAGE else ():
            own = [tried.get((column, task, setting), {}) for setting in settings]
            times = Counter(rate for rates in own for rate in rates)
            shared = [rate for rate, count in times.items() if count == max(times.values())]
            left_out |= len(shared) < len(times)
            if shared:
                points[column] = {rate: mean_point(_point(rates, rate) for rates in own) for rate in shared}
        if points:
            panels.append(Panel(task, "learning rate", points, {0: guesses[(task,)]}, log=True))
    over = "mean over the settings of each task" + (", without rates that only some have" if left_out else "")
    return draw_panels(panels, styles(cells["column"]), cells, selection, "by learning rate", layout, over)


def _tried(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection) -> Mapping[Cell, Rates]:
    """What each cell was run at, in the configuration of its best entry."""
    configs = {(cell.column, cell.task, cell.setting): cell.config for cell in cells.itertuples() if cell.n}
    found = defaultdict[Cell, Rates](lambda: defaultdict(dict))
    columns = ["column", "task", "setting", "config", "lr", "seed", "status", f"{selection}_{score_name(cells)}"]
    for column, task, setting, config, rate, seed, status, value in frame[columns].itertuples(index=False):
        cell = column, task, setting
        if configs.get(cell, config) == config:
            seeds = found[cell][rate]
            seeds[seed] = value if status == "finished" else seeds.get(seed)
    return found


def _point(rates: Rates, rate: float) -> Point:
    """Whole only with all seeds of the setting: the mean over those that did not diverge is higher by luck."""
    seeds = {seed for scores in rates.values() for seed in scores}
    scored = {seed: value for seed, value in rates.get(rate, {}).items() if value is not None}
    return seeds_point(scored, whole=len(scored) == len(seeds))
