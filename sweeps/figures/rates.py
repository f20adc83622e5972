"""Scores by learning rate."""

from collections import Counter, defaultdict
from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import TASKS, in_order
from mixerlab.sweeps.figures.axis import Panel, draw_panels
from mixerlab.sweeps.figures.points import Point, chances, mean_point, seeds_point
from mixerlab.sweeps.figures.sheet import Layout
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.columns import Column

Cell = tuple[Column, str, str]  # column, task, setting
Rates = dict[float, dict[int, float | None]]  # of a cell: its scores by learning rate and seed, None where it has none


def learning_rates(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure | None:
    """The score by learning rate for each task, averaged over its settings; None if there is only one learning rate.

    Of each cell the configuration of its best entry. Hollow is a mean that misses settings, or seeds that a setting has
    at any rate. Rates that only some settings of a column were run at are left out: where a grid was widened for single
    settings, their mean says which settings these are.

    Args:
        frame: one row per replica.
        cells: as `best_per_cell` gives them.
    """
    if frame["lr"].nunique() < 2:
        return None
    score, look, tasks = cells["score"].iloc[0], styles(cells["column"]), in_order(cells["task"], TASKS)
    tried, guesses = _tried(frame, cells, f"{selection}_{score}"), chances(cells, [(task,) for task in tasks])
    panels, left_out = [], False
    for task in tasks:
        settings = cells.loc[cells["task"] == task, "setting"].unique()
        points: dict[Column, dict[float, Point]] = {}
        for column in look:
            own = [tried.get((column, task, setting), {}) for setting in settings]
            times = Counter(rate for rates in own for rate in rates)
            shared = [rate for rate, count in times.items() if count == max(times.values())]
            left_out |= len(shared) < len(times)
            if shared:
                points[column] = {rate: mean_point(_point(rates, rate) for rates in own) for rate in shared}
        if points:
            panels.append(Panel(task, "learning rate", points, {0: guesses[(task,)]}, log=True))
    over = "mean over the settings of each task" + (", without rates that only some have" if left_out else "")
    title = f"{score.capitalize()} by learning rate"
    return draw_panels(panels, look, score, selection, title, layout, over) if panels else None


def _tried(frame: pd.DataFrame, cells: pd.DataFrame, scored: str) -> Mapping[Cell, Rates]:
    """What each cell was run at, in the configuration of its best entry."""
    configs = {(cell.column, cell.task, cell.setting): cell.config for cell in cells.itertuples() if cell.n}
    found = defaultdict[Cell, Rates](lambda: defaultdict(dict))
    columns = ["column", "task", "setting", "config", "lr", "seed", "status", scored]
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
