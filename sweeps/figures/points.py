"""What figures draw of a score: its mean, its seeds, and how certain it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

import pandas as pd

from mixerlab.records.names import AVERAGE, TASKS, averaged, in_order
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.intervals import STUDENT_T

Name = tuple[str, ...]  # of a row: ("icr",), or ("icr", "seq_len-256")


@dataclass(frozen=True)
class Point:
    """A mean score over the seeds of a setting, or over several settings.

    Attributes:
        mean: None if there is no score.
        by_seed: the mean for each seed, if all settings have the same ones; else empty.
        settings: how many have a score.
        whole: no setting lacks a score, and none lost seeds.
        error: the squared standard error of the mean. Settings with one seed add nothing to it.
        freedom: its degrees of freedom (Welch and Satterthwaite's); 0: no setting has two seeds.
        is_bound: some settings have one seed, so that the error is a lower bound.
    """

    mean: float | None = None
    by_seed: Mapping[int, float] | None = None
    settings: int = 0
    whole: bool = False
    error: float = 0.0
    freedom: float = 0.0
    is_bound: bool = False

    @property
    def seeds(self) -> list[float]:
        """The mean for each seed; empty if there are not at least two."""
        values = list((self.by_seed or {}).values())
        return values if len(values) > 1 else []

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95% interval; None for fewer than three seeds, which are drawn as they are."""
        if self.mean is None or self.freedom == 0 or len(self.seeds) == 2:
            return None
        half = STUDENT_T[min(max(int(self.freedom), 1), len(STUDENT_T)) - 1] * self.error**0.5
        return self.mean - half, self.mean + half


def seeds_point(by_seed: Mapping[int, float], whole: bool) -> Point:
    """The point of one setting; `whole`: it has all of its seeds."""
    if not by_seed:
        return Point()
    values, n = list(by_seed.values()), len(by_seed)
    error = variance(values) / n if n > 1 else 0.0
    return Point(fmean(values), by_seed, 1, whole, error, n - 1, n == 1)


def mean_point(points: Iterable[Point]) -> Point:
    """The plain mean of several points; of those that have a score, if some have none."""
    points = list(points)
    scored = [point for point in points if point.mean is not None]
    if not scored:
        return Point()
    mean = fmean(point.mean for point in scored if point.mean is not None)
    settings, whole = sum(point.settings for point in scored), all(point.whole for point in points)
    seeds = {frozenset(point.by_seed or {}) for point in scored}
    if len(seeds) == 1 and (shared := sorted(*seeds)):
        by_seed = {seed: fmean(point.by_seed[seed] for point in scored if point.by_seed) for seed in shared}
        same = seeds_point(by_seed, whole)
        return Point(mean, by_seed, settings, whole, same.error, same.freedom, same.is_bound)
    errors = [(point.error / len(scored) ** 2, point.freedom) for point in scored if point.error]
    error = sum(error for error, _ in errors)
    freedom = error**2 / sum(error**2 / freedom for error, freedom in errors) if errors else 0.0
    return Point(mean, None, settings, whole, error, freedom, any(point.is_bound for point in scored))


def cell_point(cell: Any) -> Point:
    """The point of one row of `best_per_cell`, from `itertuples`."""
    return seeds_point(cell.by_seed, whole=cell.n >= cell.seeds) if cell.n else Point()


def setting_points(cells: pd.DataFrame) -> dict[Name, dict[Column, Point]]:
    """By (task, setting), then by column."""
    found: dict[Name, dict[Column, Point]] = {}
    for cell in cells.itertuples():
        found.setdefault((cell.task, cell.setting), {})[cell.column] = cell_point(cell)
    return found


def task_points(cells: pd.DataFrame) -> dict[Name, dict[Column, Point]]:
    """By task, then by column: the mean over the task's settings; of several tasks also that over tasks (`AVERAGE`)."""
    by_setting = setting_points(cells)
    found: dict[Name, dict[Column, Point]] = {}
    for task in in_order(cells["task"], TASKS):
        rows = [row for (other, _), row in by_setting.items() if other == task]
        found[(task,)] = {column: mean_point(row[column] for row in rows) for column in rows[0]}
    over = [found[(task,)] for task in averaged(cells["task"])]
    if len(over) > 1:
        found[(AVERAGE,)] = {column: mean_point(row[column] for row in over) for column in over[0]}
    return found


def chances(cells: pd.DataFrame, names: Iterable[Name]) -> dict[Name, float]:
    """The score of a guess by row, of a mean the mean over its settings; NaN if one is not known."""
    of_setting = cells.drop_duplicates(["task", "setting"]).set_index(["task", "setting"])["chance"]
    by_task = of_setting.groupby(level="task").agg(lambda levels: levels.mean(skipna=False))
    found = {(task,): level for task, level in by_task.items()} | of_setting.to_dict()
    found[(AVERAGE,)] = by_task[averaged(by_task.index)].mean(skipna=False)
    return {name: float(found[name]) for name in names}
