"""What guessing reaches, for the lines in figures."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mixerlab.records.names import averaged
from mixerlab.sweeps.tables.tables import AVERAGE, Table

if TYPE_CHECKING:
    import pandas as pd


def chance_of(row: Mapping[str, Any]) -> float:
    """The accuracy on test of a uniform guess (`Task.chance`) for a row of `sweeps.collect.collect`; NaN: not known.

    Records made before they said so have it only for MAD's tasks, whose parameters give it.
    """
    told = _number(row.get("chance"))
    if not math.isnan(told):
        return told
    tokens, noise = _number(row.get("task.vocab_size")), _number(row.get("task.noise_vocab_size"))
    task = str(row["task"]).removesuffix("_challenge").removesuffix("_vocab")
    if task in ("icr", "ncr"):
        plain = tokens - (0 if math.isnan(noise) else noise)
        return _one_of(plain - plain // 2)
    if task in ("fcr", "mem"):
        return _one_of(tokens - 1 - (tokens - 1) // 2)
    if task == "sc":
        return _one_of(tokens - 2)
    return 2 * _one_of(tokens) if task == "cmp" else math.nan


def _one_of(number: float) -> float:
    return 1 / number if number >= 1 else math.nan


def _number(value: Any) -> float:
    """A stranger's record may have anything there."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def mean_chances(cells: "pd.DataFrame") -> dict[str, float]:
    """The mean over the settings of each task, and over the tasks; NaN if one is not known."""
    of_setting = cells.drop_duplicates(["task", "setting"])
    found = {task: float(group["chance"].mean(skipna=False)) for task, group in of_setting.groupby("task")}
    over = [found[task] for task in averaged(found)]
    return found | {AVERAGE: sum(over) / len(over) if over else math.nan}


def chances_of_rows(cells: "pd.DataFrame", table: Table) -> dict[tuple[str, ...], float]:
    """The chance level of each row of a table of tasks or settings."""
    if table.labels == ("task",):
        return {(task,): chance for task, chance in mean_chances(cells).items()}
    of_setting = cells.drop_duplicates(["task", "setting"])
    return {(cell.task, cell.setting): float(cell.chance) for cell in of_setting.itertuples()}
