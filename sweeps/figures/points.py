"""What figures draw: the scores of a report, and how certain each is."""

from dataclasses import dataclass
from functools import cached_property
from statistics import variance

import pandas as pd

from mixerlab.records.best import Selection
from mixerlab.records.names import AVERAGE, TASKS, averaged, in_order
from mixerlab.records.schema import Score
from mixerlab.sweeps.figures.styles import Style, styles
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.intervals import error_of_sum, student_t
from mixerlab.sweeps.tables.tables import Entry, Row, task_table


@dataclass(frozen=True)
class Scores:
    """What a figure is made of: the `frame` of `spread_out`, its `cells` of one score; `width` as of a `Sheet`."""

    frame: pd.DataFrame
    cells: pd.DataFrame
    selection: Selection
    width: float | None = None

    @cached_property
    def score(self) -> Score:
        """Which score it is."""
        return self.cells["score"].iloc[0]

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
    def by_task(self) -> dict[str, Row]:
        """The rows of `task_table`: the mean over the settings of each task; of several tasks, also that over tasks."""
        return {name: row for (name,), row in task_table(self.cells).rows.items()}

    @cached_property
    def chances(self) -> dict[str, float]:
        """The score of a guess by row of `by_task`: the mean over the settings; NaN if one is not known."""
        settings = self.cells.drop_duplicates(["task", "setting_name"])
        by_task = settings.groupby("task")["chance"].agg(lambda levels: levels.mean(skipna=False))
        return {**by_task, AVERAGE: by_task[averaged(by_task.index)].mean(skipna=False)}


def dots_of(entry: Entry) -> list[float]:
    """The scores of single seeds that are drawn as dots, in place of an interval.

    Those of one setting, up to five: some learned it and others did not, so that an interval would span the panel. Of a
    mean over settings two, which have no useful interval.
    """
    seeds = list(entry.by_seed.values())
    return seeds if 2 <= len(seeds) <= (5 if entry.total == 1 else 2) else []


def error_of(entry: Entry) -> tuple[float, float]:
    """The squared standard error of a mean over seeds, and its degrees of freedom (`error_of_sum`).

    Settings with one seed add nothing to the error, which then is a lower bound. (0, 0): no setting has two seeds.
    """
    if (n := len(entry.by_seed)) > 1:
        return variance(entry.by_seed.values()) / n, n - 1
    return error_of_sum((error / len(entry.parts) ** 2, freedom) for error, freedom in map(error_of, entry.parts))


def interval_of(entry: Entry) -> tuple[float, float] | None:
    """Student's 95% interval; None where nothing says how far seeds differ, or two seeds do."""
    error, freedom = error_of(entry)
    if entry.mean is None or freedom == 0 or len(entry.by_seed) == 2:
        return None
    half = student_t(freedom) * error**0.5
    return entry.mean - half, entry.mean + half


def whisker_of(entry: Entry) -> tuple[float, float] | None:
    """The interval, where it is drawn."""
    return None if dots_of(entry) else interval_of(entry)


def is_bound(entry: Entry) -> bool:
    """Whether some settings have one seed, so that the interval is a lower bound."""
    return entry.seeds[0] == 1
