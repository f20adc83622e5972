"""The `rows.csv` of a report, read back. It may be damaged, or a stranger's: a wrong line costs its row."""

import csv
import io
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from mixerlab.records.schema import LABELS, Score, check_labels, check_name, check_results, result_columns
from mixerlab.records.text import check_text, counted

# Columns that a row has beside its labels, whatever its results are.
LEADING = (*LABELS, "status", "error", "score", "higher_is_better", "config")
# Text also where it looks like a number: a mixer may be called 1e3, a hash may be 1234e567.
_TEXT = {*(name for name, kind in LABELS.items() if kind is str), "status", "error", "score", "config"}
_NO_RESULTS = ("unfinished", "missing", "unreadable")  # statuses that `collect` adds to those of records
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf", re.ASCII | re.IGNORECASE)  # as pandas reads it


def read_rows(path: str | Path) -> pd.DataFrame:
    """The `rows.csv` of a report as `collect` gave it.

    A line that cannot be a row of it is an unreadable row, whose error names the line.

    Raises:
        ValueError: the file is no such table.
    """
    whole = io.StringIO()
    writer = csv.writer(whole, lineterminator="\n")
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            lines = csv.reader(file)
            names = next(lines, [])
            _check_header(names)
            writer.writerow(names)
            start = lines.line_num + 1
            for fields in lines:
                if fields:
                    row = dict(zip(names, fields, strict=False))
                    try:
                        if len(fields) != len(names):
                            row = {}  # which cell is whose is not known
                            raise ValueError(f"it has {counted(len(fields), 'cell')}, and the first line {len(names)}")
                        _check_row(row)
                    except ValueError as error:
                        row = _damaged(row) | {"status": "unreadable", "error": f"{path}, line {start}: {error}"}
                    writer.writerow([row.get(name, "") for name in names])
                start = lines.line_num + 1
        text = [name for name in names if name in _TEXT or name.startswith("code_version.") or "commit" in name]
        whole.seek(0)
        # Only what is empty is missing: a mixer may be called NA.
        frame = pd.read_csv(
            whole, dtype=dict.fromkeys(text, str), keep_default_na=False, na_values=[""], low_memory=False
        )
    except (ValueError, OSError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as the rows.csv of a report ({error})") from error
    numbers = [name for name in _numbers(frame["score"].dropna().unique()) if name in frame]
    return frame.astype({name: float for name in numbers if frame[name].dtype == object})  # of too many digits


def _check_header(names: list[str]) -> None:
    check_text(names)
    if missing := [name for name in LEADING if name not in names]:
        raise ValueError(f"it has no {', '.join(missing)}")
    if len(set(names)) < len(names):
        raise ValueError("it has two columns of one name")


def _numbers(scores: list[str]) -> set[str]:
    labels = {name for name, kind in LABELS.items() if kind is not str}
    return labels.union(*(result_columns(Score(score))[2:] for score in scores))


def _check_row(row: Mapping[str, str]) -> None:
    """Raises `ValueError` for a cell that no report writes."""
    check_text(row)
    if row["status"] == "unreadable" and not row["mixer"]:
        return
    _check_labels(row)
    if row["status"] in _NO_RESULTS:
        return
    check_name("score", row["score"])
    score = Score(row["score"])
    if row["higher_is_better"] not in ("True", "False"):
        raise ValueError(f"higher_is_better={row['higher_is_better']!r} must be True or False")
    if missing := [name for name in (f"official_{score.name}", f"clean_val_{score.name}") if name not in row]:
        raise ValueError(f"score={score.name}: there is no column {' or '.join(missing)}")
    results = {name: _number(row, name) for name in result_columns(score)[2:] if name in row}
    if results.get("steps_to_90") == math.inf:  # which a record has as null
        results["steps_to_90"] = None
    check_results({"status": row["status"], "error": row["error"] or None} | results, score)


def _check_labels(row: Mapping[str, str]) -> None:
    labels: dict[str, str | float | None] = {}
    for name, kind in LABELS.items():
        value = row[name] if kind is str else _number(row, name)
        labels[name] = int(value) if kind is int and isinstance(value, float) and value.is_integer() else value
    if row["status"] in _NO_RESULTS:
        labels["replica"] = 0  # it has none
    check_labels(labels)
    check_name("config", row["config"])


def _number(row: Mapping[str, str], name: str) -> float | None:
    text = row[name].strip()
    if text and not _NUMBER.fullmatch(text):
        raise ValueError(f"{name}={text[:100]!r} must be a number")
    return float(text) if text else None


def _damaged(row: Mapping[str, str]) -> dict[str, str]:
    """What can be kept of a row: which replica it is, so that its cell is known to lack it."""
    try:
        check_text(row)
        _check_labels(row)
    except (ValueError, KeyError):  # KeyError: nothing is known of it
        return {}
    results = _numbers([row.get("score", "")]) - set(LABELS)
    return {name: text for name, text in row.items() if name not in results}
