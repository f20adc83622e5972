"""What figures draw: the scores of a report, and of each its mean, its seeds, and how certain it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, variance
from typing import Any

import pandas as pd

from mixerlab.records.best import Selection
from mixerlab.records.names import AVERAGE, TASKS, averaged, in_order
from mixerlab.sweeps.figures.sheet import Layout
from mixerlab.sweeps.figures.styles import Style, styles
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.intervals import STUDENT_T


@dataclass(frozen=True)
class Scores:
    """What a figure is made of.

    Attributes:
        frame: the replicas, as `spread_out` gives them.
        cells: as `best_per_cell` gives them.
        selection: what chose checkpoint and learning rate.
        layout: how wide figures are, and whether they have a heading.
    """

    frame: pd.DataFrame
    cells: pd.DataFrame
    selection: Selection
    layout: Layout

    @cached_property
    def name(self) -> str:
        """What the score is called."""
        return next(iter(self.cells["score"].dropna()), "accuracy")

    @property
    def has_chance(self) -> bool:
        """Whether the score of a guess is known anywhere."""
        return bool(self.cells["chance"].notna().any())

    @cached_property
    def look(self) -> dict[Column, Style]:
        """The style of each column, in their order."""
        return styles(self.cells["column"])

    @cached_property
    def tasks(self) -> list[str]:
        return in_order(self.cells["task"], TASKS)

    def cells_on(self, task: str) -> pd.DataFrame:
        return self.cells[self.cells["task"] == task]

    @cached_property
    def by_task(self) -> dict[str, dict[Column, "Point"]]:
        """The mean over the settings of each task; of several tasks, also that over tasks (`AVERAGE`)."""
        settings: dict[str, dict[Column, list[Point]]] = {task: {} for task in self.tasks}
        for cell in self.cells.itertuples():
            settings[cell.task].setdefault(cell.column, []).append(cell_point(cell))
        rows = {task: {column: mean_point(own) for column, own in row.items()} for task, row in settings.items()}
        if len(tasks := averaged(rows)) > 1:
            rows[AVERAGE] = {column: mean_point(rows[task][column] for task in tasks) for column in self.look}
        return rows

    @cached_property
    def chances(self) -> dict[str, float]:
        """The score of a guess by row of `by_task`: the mean over the settings; NaN if one is not known."""
        settings = self.cells.drop_duplicates(["task", "setting"])
        by_task = settings.groupby("task")["chance"].agg(lambda levels: levels.mean(skipna=False))
        return {**by_task, AVERAGE: by_task[averaged(by_task.index)].mean(skipna=False)}


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
        """The mean for each of two seeds, which are drawn as they are; more have an interval."""
        return list(self.by_seed.values()) if len(self.by_seed) == 2 else []

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95% interval."""
        if self.mean is None or self.freedom == 0 or self.seeds:
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
