"""The `rows.csv` of a report, read back."""

from pathlib import Path

import pandas as pd

from mixerlab.records.errors import reason
from mixerlab.records.schema import LABELS, Score, result_columns

# Columns that a row has beside its labels, whatever its results are.
LEADING = (*LABELS, "status", "error", "score", "higher_is_better", "config")
# Text also where it looks like a number: a mixer may be called 1e3, a hash may be 1234e567.
_TEXT = {*(name for name, kind in LABELS.items() if kind is str), "status", "error", "score", "config"}


def read_rows(path: str | Path) -> pd.DataFrame:
    """The `rows.csv` of a report as `collect` gave it.

    Raises:
        ValueError: the file is no such table, or a line of it cannot be a row, which is named.
    """
    try:
        names = pd.read_csv(path, nrows=0).columns
        if missing := [name for name in LEADING if name not in names]:
            raise ValueError(f"it has no {', '.join(missing)}")
        text = [name for name in names if name in _TEXT or name.startswith("code_version.") or "commit" in name]
        # Only what is empty is missing: a mixer may be called NA.
        frame = pd.read_csv(
            path, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=[""], low_memory=False
        )
        return _checked(frame)
    except Exception as error:
        raise ValueError(f"{path} cannot be read as the rows.csv of a report ({reason(error)})") from error


def _checked(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows, with numbers where there must be some; `ValueError` names the line and the value that cannot be."""
    scores = {name: Score(name) for name in frame["score"].dropna().unique()}
    needed = [column for name in scores for column in (f"official_{name}", f"clean_val_{name}")]
    if missing := [column for column in needed if column not in frame]:
        raise ValueError(f"it has no {', '.join(missing)}")
    numbers = {name for name, kind in LABELS.items() if kind is not str}.union(
        *(result_columns(score)[2:] for score in scores.values())
    )
    for name in numbers & set(frame):
        found = pd.to_numeric(frame[name], errors="coerce")
        if (wrong := found.isna() & frame[name].notna()).any():
            place = wrong.idxmax()
            raise ValueError(f"line {place + 2}: {name}={frame[name][place]!r} must be a number")
        frame[name] = found
    return frame
