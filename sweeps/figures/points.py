"""What figures draw of a score: its mean, its seeds, and how certain it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean, variance
from typing import Any

import pandas as pd

from mixerlab.records.names import AVERAGE, TASKS, averaged, in_order
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.intervals import STUDENT_T

Name = tuple[str, ...]  # of a row: ("icr",)


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
    by_seed: Mapping[int, float] = field(default_factory=dict)
    settings: int = 0
    whole: bool = False
    error: float = 0.0
    freedom: float = 0.0
    is_bound: bool = False

    @property
    def seeds(self) -> list[float]:
        """The mean for each seed, of several."""
        return list(self.by_seed.values()) if len(self.by_seed) > 1 else []

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
    n = len(by_seed)
    error = variance(by_seed.values()) / n if n > 1 else 0.0
    return Point(fmean(by_seed.values()), by_seed, 1, whole, error, n - 1, is_bound=n == 1)


def cell_point(cell: Any) -> Point:
    """The point of one row of `best_per_cell`, from `itertuples`."""
    return seeds_point(cell.by_seed, whole=cell.n >= cell.seeds)


def mean_point(points: Iterable[Point]) -> Point:
    """The plain mean of several points; of those that have a score, if some have none."""
    points = list(points)
    scored = [point for point in points if point.mean is not None]
    if not scored:
        return Point()
    settings, whole = sum(point.settings for point in scored), all(point.whole for point in points)
    seeds = {frozenset(point.by_seed) for point in scored}
    if len(seeds) == 1 and (shared := sorted(*seeds)):
        by_seed = {seed: fmean(point.by_seed[seed] for point in scored) for seed in shared}
        return replace(seeds_point(by_seed, whole), settings=settings)
    errors = [(point.error / len(scored) ** 2, point.freedom) for point in scored if point.error]
    error = sum(part for part, _ in errors)
    freedom = error**2 / sum(part**2 / freedom for part, freedom in errors) if errors else 0.0
    mean = fmean(point.mean for point in scored if point.mean is not None)
    return Point(mean, {}, settings, whole, error, freedom, any(point.is_bound for point in scored))


def task_points(cells: pd.DataFrame) -> dict[Name, dict[Column, Point]]:
    """By task, then by column: the mean over the task's settings; of several tasks also that over tasks (`AVERAGE`)."""
    by_task: dict[str, dict[Column, list[Point]]] = {task: {} for task in in_order(cells["task"], TASKS)}
    for cell in cells.itertuples():
        by_task[cell.task].setdefault(cell.column, []).append(cell_point(cell))
    found = {(task,): {column: mean_point(own) for column, own in row.items()} for task, row in by_task.items()}
    if len(over := averaged(by_task)) > 1:
        found[(AVERAGE,)] = {
            column: mean_point(found[(task,)][column] for task in over) for column in found[(over[0],)]
        }
    return found


def chances(cells: pd.DataFrame, names: Iterable[Name]) -> dict[Name, float]:
    """The score of a guess by row of `task_points`: the mean over the settings; NaN if one is not known."""
    by_setting = cells.drop_duplicates(["task", "setting"])
    by_task = by_setting.groupby("task")["chance"].agg(lambda levels: levels.mean(skipna=False))
    mean = by_task[averaged(by_task.index)].mean(skipna=False)
    return {name: float(mean if name == (AVERAGE,) else by_task[name[0]]) for name in names}


def score_name(cells: pd.DataFrame) -> str:
    """What the score of these cells is called."""
    return next(iter(cells["score"].dropna()), "accuracy")
