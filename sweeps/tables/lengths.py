"""Cells whose test rows have another length than the rows of training: which they are, and their table."""

import math
from dataclasses import replace

import pandas as pd

from mixerlab.records.names import other_test_length
from mixerlab.sweeps.tables.tables import Score, Table, setting_table

NOTE = (
    "Lengths in tokens. Validation rows have the length of training; the accuracy counts all positions of a test row,"
    " also those within the length of training."
)


def length_of_training(frame: pd.DataFrame, task: str, setting: str) -> int | None:
    """The length of training rows at a setting, also if the frame has it with other test rows only; None: not known."""
    if "task.seq_len" not in frame:
        return None
    known = frame.loc[frame["task"] == task, ["setting", "task.seq_len"]].drop_duplicates()
    for name, length in known.itertuples(index=False):
        if setting not in (name, (other_test_length(name) or (None,))[0]):
            continue
        if isinstance(length, int | float) and 0 < length < math.inf:  # a stranger's record may have anything there
            return int(length)
    return None


def at_length_of_training(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells whose test rows have the length of training; of a task that has none of these, all."""
    other = cells["setting"].map(lambda setting: other_test_length(setting) is not None).astype(bool)
    return cells[~(other & cells["task"].isin(cells.loc[~other, "task"]))]


def length_table(frame: pd.DataFrame, cells: pd.DataFrame) -> Table | None:
    """(task, setting, length of training, length of test rows) x mixers; None if no cell has other test rows.

    Args:
        frame: one row per replica, which says at what length a setting trains.
        cells: as `sweeps.collect.best_per_cell` gives them.
    """
    settings = list(dict.fromkeys(zip(cells["task"], cells["setting"], strict=True)))
    tested: dict[tuple[str, str], dict[int, str]] = {}  # (task, setting of training) -> length -> setting
    for task, setting in settings:
        if (found := other_test_length(setting)) is not None:
            tested.setdefault((task, found[0]), {})[found[1]] = setting
    places: dict[tuple[str, str], tuple[str, ...]] = {}
    for (task, origin), of_length in tested.items():
        trained = length_of_training(frame, task, origin)
        if trained is not None and (task, origin) in settings:
            of_length[trained] = origin
        for length in sorted(of_length):
            places[task, of_length[length]] = (task, origin, "?" if trained is None else str(trained), str(length))
    if not places:
        return None
    wanted = [place in places for place in zip(cells["task"], cells["setting"], strict=True)]
    table = setting_table(cells[wanted])
    rows: dict[tuple[str, ...], dict[str, Score]] = {name: table.rows[place] for place, name in places.items()}
    labels = ("task", "setting", "trained at", "tested at")
    about: dict[tuple[str, ...], tuple[str, ...]] = {name: place for place, name in places.items()}
    return replace(table, labels=labels, rows=rows, legend=[NOTE, *table.legend], about=about)
