"""What figures draw: the scores of a report."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from mixerlab.records.best import Selection
from mixerlab.records.names import AVERAGE, TASKS, averaged, in_order
from mixerlab.records.schema import Score
from mixerlab.sweeps.figures.styles import Style, styles
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.tables import Row, task_table


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
        return task_table(self.cells).frame.T.to_dict()

    @cached_property
    def chances(self) -> dict[str, float]:
        """The score of a guess by row of `by_task`: the mean over the settings; NaN if one is not known."""
        settings = self.cells.drop_duplicates(["task", "setting_name"])
        by_task = settings.groupby("task")["chance"].agg(lambda levels: levels.mean(skipna=False))
        return {**by_task, AVERAGE: by_task[averaged(by_task.index)].mean(skipna=False)}

    @property
    def average(self) -> str:
        """What a caption says of the mean over tasks that leaves some out."""
        own = [task for task in self.tasks if task not in averaged(self.tasks)]
        return f"{AVERAGE} is without {', '.join(own)}" if own and AVERAGE in self.by_task else ""
