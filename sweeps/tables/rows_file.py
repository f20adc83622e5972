"""The `rows.csv` of a report, read back. It may be damaged, or a stranger's."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from mixerlab.records.schema import LABELS, Score, check_labels, check_name, check_results, result_columns
from mixerlab.records.text import check_text

# Columns that a row has beside its labels, whatever its results are.
LEADING = (*LABELS, "status", "error", "score", "higher_is_better", "config")
# Text also where it looks like a number: a mixer may be called 1e3, a hash may be 1234e567.
_TEXT = {*(name for name, kind in LABELS.items() if kind is str), "status", "error", "score", "config"}
_NO_RESULTS = ("unfinished", "missing", "unreadable")  # statuses that `collect` adds to those of records


def read_rows(path: str | Path) -> pd.DataFrame:
    """The `rows.csv` of a report as `collect` gave it.

    Raises:
        ValueError: the file is no such table; the message has the first row that cannot be one of it.
    """
    try:
        names = list(pd.read_csv(path, nrows=0))
        check_text(names)
        if missing := [name for name in LEADING if name not in names]:
            raise ValueError(f"it has no {', '.join(missing)}")
        text = [name for name in names if name in _TEXT or name.startswith("code_version.") or "commit" in name]
        # Only what is empty is missing: a mixer may be called NA.
        frame = pd.read_csv(
            path, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=[""], low_memory=False
        )
        numbers = {name for name, kind in LABELS.items() if kind is not str}
        numbers = numbers.union(*(result_columns(Score(score))[2:] for score in frame["score"].dropna().unique()))
        frame = frame.astype({name: float for name in numbers if name in frame and not is_numeric_dtype(frame[name])})
        for number, row in enumerate(frame.astype(object).where(frame.notna(), None).to_dict("records"), start=1):
            try:
                _check_row(row)
            except ValueError as error:
                raise ValueError(f"row {number}: {error}") from error
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as the rows.csv of a report ({error})") from error
    return frame


def _check_row(row: Mapping[str, Any]) -> None:
    """Raises `ValueError` for a cell that no report writes; None is an empty one."""
    for value in row.values():
        check_text(value)
    if row["status"] == "unreadable" and row["mixer"] is None:
        return
    has_results = row["status"] not in _NO_RESULTS
    labels = {name: row[name] for name in LABELS} | ({} if has_results else {"replica": 0})
    for name in (name for name, kind in LABELS.items() if kind is not str and isinstance(labels[name], int | float)):
        labels[name] = int(labels[name]) if LABELS[name] is int and labels[name] % 1 == 0 else float(labels[name])
    check_labels(labels)
    check_name("config", row["config"])
    if not has_results:
        return
    check_name("score", row["score"])
    score = Score(row["score"])
    if row["higher_is_better"] not in (True, False, "True", "False"):  # text beside a wrong one
        raise ValueError(f"higher_is_better={row['higher_is_better']!r} must be True or False")
    if missing := [name for name in (f"official_{score.name}", f"clean_val_{score.name}") if name not in row]:
        raise ValueError(f"score={score.name}: there is no column {' or '.join(missing)}")
    steps = row.get("steps_to_90")  # inf: which a record has as null
    check_results({**row, "steps_to_90": None if steps == math.inf else steps}, score)
