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
        ValueError: the file is no such table, or has a text where a number must be.
    """
    try:
        names = pd.read_csv(path, nrows=0).columns
        text = [name for name in names if name in _TEXT or name.startswith("code_version.") or "commit" in name]
        # Only what is empty is missing: a mixer may be called NA.
        frame = pd.read_csv(
            path, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=[""], low_memory=False
        )
        scores = [Score(name) for name in frame["score"].dropna().unique()]
        needed = {*LEADING, *(f"{place}_{score.name}" for place in ("official", "clean_val") for score in scores)}
        if missing := sorted(needed - set(names)):
            raise ValueError(f"it has no {', '.join(missing)}")
        numbers = {name for name, kind in LABELS.items() if kind is not str}
        for name in numbers.union(*(result_columns(score)[2:] for score in scores)) & set(names):
            frame[name] = pd.to_numeric(frame[name])
        return frame
    except Exception as error:
        raise ValueError(f"{path} cannot be read as the rows.csv of a report ({reason(error)})") from error
