"""The `rows.csv` of a report, read back."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from mixerlab.records.errors import reason
from mixerlab.records.schema import LABELS, Score, result_columns

# Columns that a row has beside its labels, whatever its results are.
LEADING = (*LABELS, "status", "error", "score", "higher_is_better", "config")
# Text also where it looks like a number: a mixer may be called 1e3, a hash may be 1234e567.
_TEXTS = {*(name for name, kind in LABELS.items() if kind is str), "status", "error", "score", "config"}


def read_rows(path: str | Path) -> pd.DataFrame:
    """The `rows.csv` of a report as `collect` gave it."""
    try:
        # Only what is empty is missing: a mixer may be called NA.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
        scores = [Score(name) for name in frame["score"].dropna().unique()]
        needed = {*LEADING, *(f"{place}_{score.name}" for place in ("official", "clean_val") for score in scores)}
        if missing := sorted(needed - set(frame)):
            raise ValueError(f"it has no {', '.join(missing)}")
        numbers = {name for name, kind in LABELS.items() if kind is not str}
        numbers = numbers.union(*(result_columns(score)[2:] for score in scores))
        return frame.apply(lambda own: own if _is_text(own.name) else _values(own, own.name in numbers))
    except Exception as error:
        raise ValueError(f"{path} cannot be read as the rows.csv of a report ({reason(error)})") from error


def _is_text(column: str) -> bool:
    return column in _TEXTS or column.startswith("code_version.") or "commit" in column


def _values(texts: pd.Series, are_numbers: bool) -> pd.Series:
    return pd.to_numeric(texts) if are_numbers else texts.map({text: _value(text) for text in texts.dropna().unique()})


def _value(text: str) -> Any:
    """What pandas has written so: a number or a bool, or text that looks like one, such as `1e3`."""
    for kind in (int, float):
        with suppress(ValueError):
            if str(kind(text)) == text:
                return kind(text)
    return {"True": True, "False": False}.get(text, text)
