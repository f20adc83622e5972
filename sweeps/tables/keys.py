"""Which keys of the configs were swept, and the columns and rows that they make.

A sweep over `model.d_model` gives the columns `attn, d_model=64` and `attn, d_model=128`. One over a key of the task,
such as `task.data_seed`, gives the rows `baseline, data_seed=1` and `baseline, data_seed=2`, whatever keys a report is
by: scores on different data never compete. Learning rates and seeds give neither.
"""

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import pandas as pd
import yaml

from mixerlab.records.names import SEES_FUTURE, rank

GROUPS = ("mixer", "task", "model", "optimizer", "schedule", "trainer")
# Keys of a config that a row has under another name.
COLUMNS = {
    "mixer.name": "mixer",
    "task.name": "task",
    "task.setting": "setting",
    "optimizer.name": "optimizer",
    "optimizer.lr": "lr",
    "optimizer.weight_decay": "weight_decay",
    "schedule.name": "schedule",
    "trainer.epochs": "epochs",
    "trainer.batch_size": "batch_size",
}
# Not swept: each is a row, a column or a replica anyway.
_PLACES = ("mixer", "task", "setting", "lr", "seed", "run_id", "replica")
# The digest of a dataset on disk, of which a label shows the first digits: `baseline, data=83b4fe8e`.
_DATA, _DIGITS = "task.data_sha256", 8
_OF_LAYER = re.compile(r"^mixer\.options\.(\d+)\.")  # a key of one layer of a hybrid
FUTURE_KEY = "model.may_see_future"
FOUND = "sees_future"  # in the provenance: what the run found


@dataclass(frozen=True)
class Column:
    """A column of the tables: a mixer, and the values of the swept keys by which it differs from its other columns."""

    mixer: str
    values: dict[str, Any]  # by key, as in the frame; None for null


@dataclass(frozen=True)
class Swept:
    """A frame of replicas in which `mixer` and `setting` name columns and rows, and what the columns stand for.

    Attributes:
        frame: as `sweeps.collect.collect` gives it, with other values of `mixer` and `setting`.
        keys: the keys that columns show.
        told: these, and the keys that rows and marks show.
        columns: what each value of `mixer` in the frame stands for.
        hidden: keys that differ between runs of one column, and their values, by column.
    """

    frame: pd.DataFrame
    keys: list[str]
    told: list[str]
    columns: dict[str, Column]
    hidden: dict[str, dict[str, list[str]]]


def shown(value: Any) -> str:
    """A value as YAML writes it, `64`, `0.1`, `true`, `null`; a number by its value, whatever its type."""
    if value is None or (isinstance(value, Real) and not isinstance(value, bool) and math.isnan(value)):
        return "null"
    if isinstance(value, Real) and type(value).__name__ not in ("bool", "bool_"):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    if isinstance(value, list | dict):
        return json.dumps(value)
    return str(value).lower() if type(value).__name__ in ("bool", "bool_") else str(value)


def column_of(frame: pd.DataFrame, key: str) -> str:
    """The column of the frame that has this key of the config; `ValueError` with the nearest keys if none has."""
    column = COLUMNS.get(key, key)
    if column in frame:
        return column
    known = [*COLUMNS, *(name for name in frame if "." in name and name.partition(".")[0] in GROUPS)]
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5) or sorted(known)
    raise ValueError(f"no record has the key {key}: there are {', '.join(near)}")


def _values(frame: pd.DataFrame, column: str) -> pd.Series:
    """The column as text."""
    return frame[column].map(shown)


def only_where(frame: pd.DataFrame, conditions: Iterable[str]) -> pd.DataFrame:
    """The rows that meet every `KEY=VALUE`; values count as in YAML, so `64` is `64.0`, and `null` is also no key.

    `KEY=a,b` is either of both, unless a record has the value `a,b`, as a setting may; a setting may have its parts in
    any order. What cannot be read may be any of them, and stays.

    Raises:
        ValueError: another form, a key that no record has, or a value that none has.
    """
    for condition in conditions:
        key, equals, text = condition.partition("=")
        if not equals or not key:
            raise ValueError(f"--where {condition}: write KEY=VALUE, such as model.d_model=64")
        column = column_of(frame, key)
        values = _values(frame, column)
        unreadable = frame["mixer"].isna()
        there = set(values[~unreadable])
        wanted = [_wanted(text)]
        if wanted[0] not in there:
            same = [value for value in there if column == "setting" and _in_any_order(value) == _in_any_order(text)]
            wanted = same or _each(text) or wanted
        if lacking := [value for value in wanted if value not in there]:
            known = ", ".join(sorted(there, key=lambda text: rank(text, ()))[:10])
            raise ValueError(f"--where {condition}: no record has the value {' or '.join(lacking)}; there are {known}")
        frame = frame[values.isin(wanted) | unreadable]
    return frame


def _wanted(text: str) -> str:
    try:
        return shown(float(text))  # YAML 1.1 takes 1e-3 for a string
    except ValueError:
        pass
    try:
        return shown(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError):  # ValueError: what looks like a date, and is none
        return text


def _in_any_order(setting: str) -> list[str]:
    """`["seq_len=32", "vocab_size=8"]` of `vocab_size=8,seq_len=32`, which is the same setting in any order."""
    return sorted(part.strip() for part in setting.split(","))


def _each(text: str) -> list[str]:
    """`a` and `b` of `a,b`; a comma in brackets or quotes is part of a value."""
    try:
        items = yaml.safe_load(f"[{text}]")
    except (yaml.YAMLError, ValueError):
        return []
    return [_wanted(item) if isinstance(item, str) else shown(item) for item in items]


def swept_keys(frame: pd.DataFrame) -> list[str]:
    """The keys that take several values within one mixer on one task: those of the task itself within one setting.

    The keys of an optimizer or schedule count within the runs of one optimizer or schedule.
    """
    known = frame[frame["mixer"].notna()]
    names = {column: key for key, column in COLUMNS.items()}
    found = []
    for column in known:
        key = names.get(column, column)
        group = key.partition(".")[0]
        if column in _PLACES or "." not in key or group not in GROUPS:
            continue
        if len(set(known[column].tolist())) > 1 and (values := _values(known, column)).nunique() > 1:
            scope = ["mixer", "task", *(["setting"] if group == "task" else [])]
            if group in ("optimizer", "schedule") and column != group:
                scope.append(group)
            if (values.groupby([known[name] for name in scope]).nunique() > 1).any():
                found.append(key)
    return sorted(found, key=_key_rank)


def _key_rank(key: str) -> tuple[int, bool, str]:
    group = key.partition(".")[0]
    return (GROUPS.index(group) if group in GROUPS else len(GROUPS), not key.endswith(".name"), key)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """What each key is called in a label: its last part, or the group of a name; in full if two would be the same.

    A key of one layer of a hybrid is called `layer 0 num_heads`, and a digest by what it is of.
    """
    short = {
        key: _OF_LAYER.sub(r"layer \1 ", key).removesuffix(".name").removesuffix("_sha256").rpartition(".")[2]
        for key in keys
    }
    counts = Counter(short.values())
    return {key: name if counts[name] == 1 else key for key, name in short.items()}


def spread_out(frame: pd.DataFrame, by: Collection[str] | None = None) -> Swept:
    """Gives each value of a swept key its own column, or row for a key of the task.

    Args:
        frame: as `sweeps.collect.collect` gives it.
        by: the keys to spread out, swept or not, beside the keys of the task that were swept; None: all that were
            swept. The runs of one column that differ in others compete, and `hidden` names these.

    Raises:
        ValueError: a key that no record has.
    """
    swept = swept_keys(frame)
    given = swept if by is None else [key for key in by if key not in ("mixer", "mixer.name")]
    wanted = list(dict.fromkeys([*given, *(key for key in swept if key.startswith("task."))]))
    for key in wanted:
        column_of(frame, key)
    readable = frame["mixer"].notna()
    in_rows = [key for key in wanted if key.startswith("task.") and COLUMNS.get(key) not in ("task", "setting")]
    in_columns = [key for key in wanted if not key.startswith("task.")]
    result = frame.astype({"mixer": object, "setting": object})
    known = frame[readable]
    result.loc[readable, "setting"] = _relabelled(known, "setting", in_rows, ["task"])
    labels = _relabelled(known, "mixer", in_columns, ["mixer"])
    if FUTURE_KEY in known:
        sees = _values(known, FUTURE_KEY) == "true"
        if FOUND in known:  # a mixer that may, and was found not to
            sees &= known[FOUND].map(shown) != "false"
        names = known["mixer"].astype(str)
        labels = labels.where(
            ~sees, [f"{name}{SEES_FUTURE}{label[len(name) :]}" for name, label in zip(names, labels, strict=True)]
        )
    result.loc[readable, "mixer"] = labels
    columns = {
        label: Column(known["mixer"][group.index[0]], {key: _plain(known, key, group.index[0]) for key in in_columns})
        for label, group in labels.groupby(labels, sort=False)
    }
    hidden = _hidden(result[readable], [key for key in swept if key not in wanted])
    told = [*wanted, *([FUTURE_KEY] if FUTURE_KEY in frame else [])]
    return Swept(result, in_columns, told, columns, hidden)


def _plain(frame: pd.DataFrame, key: str, place: Any) -> Any:
    value = frame[column_of(frame, key)][place]
    return None if shown(value) == "null" else value


def _relabelled(frame: pd.DataFrame, name: str, keys: Sequence[str], scope: list[str]) -> pd.Series:
    """The column `name`, each value followed by `, key=value` for the keys that it has.

    A key of the mixer belongs to the mixers that have it (in which it differs, where several do: `num_heads` of one is
    not that of another); one of an optimizer or a task to those that have it.
    """
    labels = frame[name].astype(object)
    short = short_names(keys)
    for key in keys:
        column = column_of(frame, key)
        values, group = _values(frame, column), key.partition(".")[0]
        if key == _DATA:  # generated rows are those of the setting's name
            has, values = values != "null", values.map(lambda text: text[:_DIGITS])
        elif group in ("mixer", "task") or key == FUTURE_KEY:  # which a mark shows wherever it matters
            differs = values.groupby([frame[part] for part in scope]).transform("nunique") > 1
            has = differs if differs.any() else values != "null"
        elif group in ("optimizer", "schedule") and column != group:
            has = (values != "null").groupby([frame["mixer"], frame[group]]).transform("any")
        else:
            has = pd.Series(True, index=frame.index)
        told = values.map(lambda text, short=short[key]: f", {short}={text}")
        labels = labels.where(~has, labels + told)
    return labels


def _hidden(frame: pd.DataFrame, keys: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """By column of the tables: the values of the keys that differ between its runs."""
    found: dict[str, dict[str, list[str]]] = {}
    for key in keys:
        values = _values(frame, column_of(frame, key))
        for label, group in values.groupby(frame["mixer"], sort=False):
            if group.nunique() > 1:
                found.setdefault(str(label), {})[key] = sorted(set(group), key=lambda text: rank(text, ()))
    return found


def notes_of(swept: Swept) -> list[str]:
    """What labels do not say.

    A line for each column whose entries are the best of several configurations, with the keys that differ; and one for
    each key that is null in a column.
    """
    short = short_names(swept.keys)
    null = {
        key
        for label, column in swept.columns.items()
        for key, value in column.values.items()
        if value is None and f", {short[key]}=null" in label  # a label leaves out keys that its mixer does not have
    }
    return [
        f"{short[key]}=null: {key} is null, or the runs were made before there was this key."
        for key in swept.keys
        if key in null
    ] + [
        f"{label}: its runs differ in "
        + "; ".join(f"{key} ({', '.join(values)})" for key, values in keys.items())
        + f", of which an entry is the best: --by {' '.join(keys)} makes columns of them."
        for label, keys in swept.hidden.items()
    ]
