"""Cells whose test rows have another length than the rows of training: which they are, and their table."""

import math
from collections import defaultdict

import pandas as pd

from mixerlab.records.names import other_test_length
from mixerlab.sweeps.tables.tables import Row, Table, entries_of, make_table


def at_length_of_training(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells whose test rows have the length of training; of a task that has none of these, all."""
    other = cells["setting"].map(lambda setting: other_test_length(setting) is not None).astype(bool)
    return cells[~(other & cells["task"].isin(cells.loc[~other, "task"]))]


def length_table(frame: pd.DataFrame, cells: pd.DataFrame) -> Table | None:
    """(task, setting, length of training, length of test rows) x columns; None if all test rows have that of training.

    Args:
        frame: one row per replica, which says at what length a setting trains.
        cells: as `best_per_cell` gives them.
    """
    scores = entries_of(cells)
    lengths: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)  # (task, setting of training): length: setting
    for task, setting in scores:
        if (found := other_test_length(setting)) is not None:
            lengths[task, found[0]][found[1]] = setting
    rows: dict[tuple[str, ...], Row] = {}
    for (task, origin), settings in lengths.items():
        trained = length_of_training(frame, task, origin)
        if trained is not None and (task, origin) in scores:
            settings[trained] = origin
        for length in sorted(settings):
            name = (task, settings[length], "?" if trained is None else str(trained), str(length))
            rows[name] = scores[task, settings[length]]
    if not rows:
        return None
    shown = {name[:2] for name in rows}
    places = zip(cells["task"], cells["setting"], strict=True)
    note = "Lengths in tokens. Validation rows have the length of training; a score counts all positions of a test row."
    return make_table(
        ("task", "setting", "trained at", "tested at"), rows, cells[[place in shown for place in places]], [note]
    )


def length_of_training(frame: pd.DataFrame, task: str, setting: str) -> int | None:
    """The length of training rows at a setting, also if the frame has it with other test rows only; None: not known."""
    if "task.seq_len" not in frame:
        return None
    for name, length in frame.loc[frame["task"] == task, ["setting", "task.seq_len"]].drop_duplicates().values:
        trained_so = setting in (name, (other_test_length(name) or (None,))[0])
        if trained_so and isinstance(length, int | float) and 0 < length < math.inf:  # a record may have anything there
            return int(length)
    return None
