"""Which keys of the configs were swept, and the columns and rows that they make.

A sweep over `model.d_model` gives the columns `attn, d_model=64` and `attn, d_model=128`. One over a key of the task,
such as `task.data_seed`, gives the rows `baseline, data_seed=1` and `baseline, data_seed=2`, whatever keys a report is
by: scores on different data never compete, nor do different scores. Learning rates and seeds give neither.
"""

import difflib
import json
import math
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from numbers import Real
from typing import Any

import pandas as pd
import yaml

from mixerlab.records.names import natural
from mixerlab.records.schema import GROUPS, LABELS
from mixerlab.sweeps.tables.columns import Column, short_names

# Keys of a config that a row has under another name.
NAMES = {
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
_PLACES = ("mixer.name", "task.name", "task.setting", "optimizer.lr")  # each is a row, a column or a replica anyway
_DATA = "task.data_sha256"  # of a dataset on disk: a row shows the first digits, `baseline, data=83b4fe8e`
TOKENS = "task.tokens"  # to train on, in place of epochs


def as_yaml(value: Any) -> str:
    """A value as YAML writes it, `64`, `0.1`, `true`, `null`; a number by its value, whatever its type."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "null"
    if type(value).__name__ in ("bool", "bool_"):
        return str(value).lower()
    if isinstance(value, Real):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < 2**53 else repr(number)
    return json.dumps(value) if isinstance(value, list | dict) else str(value) or "''"


def values_of(frame: pd.DataFrame, key: str) -> pd.Series:
    """The values of a key as YAML writes them; a run without it has `null`, or `false` where others have a bool."""
    name = NAMES.get(key, key)
    if name not in frame:
        known = [*NAMES, *LABELS, *(name for name in frame if name.partition(".")[0] in GROUPS and "." in name)]
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.5) or [*_PLACES, *swept_keys(frame)]
        raise ValueError(f"no record has the key {key}: name one such as {', '.join(near)}")
    values = frame[name].map(as_yaml)
    return values.replace("null", "false") if values.isin(["true", "false"]).any() else values


def only_where(frame: pd.DataFrame, conditions: Iterable[str]) -> pd.DataFrame:
    """The rows that meet every `KEY=VALUE`; values count as in YAML, so `64` is `64.0`, and `null` is also no key.

    `KEY=a,b` is either of both, unless a record has the value `a,b`, as a setting may. What cannot be read may be any
    of them, and stays.
    """
    for condition in conditions:
        key, equals, text = condition.partition("=")
        if not equals or not key:
            raise ValueError(f"--where {condition}: write KEY=VALUE, such as model.d_model=64")
        values, readable = values_of(frame, key), frame["mixer"].notna()
        given = frame[NAMES.get(key, key)].map(as_yaml)  # a bool that a run lacks is false, and here null
        known = {*values[readable], *given[readable]}
        parts = [text] if {text, _read(text)} & known else text.split(",")
        wanted = {part if part in known else _read(part) for part in parts}  # as it stands: a mixer may be called 1e3
        if unknown := sorted(wanted - known):
            there = ", ".join(sorted(known, key=natural)[:10])
            raise ValueError(f"--where {condition}: no record has the value {' or '.join(unknown)}; there are {there}")
        frame = frame[values.isin(wanted) | given.isin(wanted) | ~readable]
    return frame


def _read(text: str) -> str:
    """What is typed for a value, as YAML writes it."""
    for read in (float, yaml.safe_load):  # YAML 1.1 takes 1e-3 for a string
        with suppress(yaml.YAMLError, ValueError):  # ValueError also for what looks like a date, and is none
            return as_yaml(read(text))
    return text


def swept_keys(frame: pd.DataFrame) -> list[str]:
    """The keys that take several values within one mixer on one task.

    Those of the task count within one setting, whatever the mixer, and those of the schedule within one setting too: a
    number of steps is another fraction of the training (`${steps:750}`) on each. `model.d_ff` counts within runs whose
    mixer and model agree in all other keys: with `model.match_params` it follows from them. The keys of an optimizer or
    schedule count within the runs of one optimizer or schedule, and those of an optimizer inside another within the
    runs of its class.
    """
    keys = {name: key for key, name in NAMES.items()}
    frame = frame[frame["mixer"].notna()]
    found = []
    for name in frame:
        key = keys.get(name, name)
        group, dot, _ = key.partition(".")
        if group not in GROUPS or not dot or key in _PLACES or len(set(frame[name].tolist())) < 2:
            continue
        scope = ["mixer"] if name == "mixer._target_" else ["mixer", "task"]  # classes that share the name of a mixer
        if group == "task":
            scope = ["task", "setting"]
        elif group == "schedule":
            scope.append("setting")
        if name == "epochs" and TOKENS in frame:  # then they follow from it
            scope.append(TOKENS)
        if key == "model.d_ff":
            scope += [other for other in frame if other.startswith(("mixer.", "model.")) and other != key]
        if group in ("optimizer", "schedule") and name != group:
            scope += [group, *_class_around(frame, key)]
        places = [frame[part] for part in scope]
        if (values_of(frame, key).groupby(places, dropna=False).nunique() > 1).any():
            found.append(key)
    return sorted(found, key=lambda key: (GROUPS.index(key.partition(".")[0]), not key.endswith(".name"), key))


def spread_out(frame: pd.DataFrame, by: Collection[str] | None = None, data_in_columns: bool = False) -> pd.DataFrame:
    """The frame with its `column` for each row, and the swept keys of the task in the names of its settings.

    Columns are told by the keys `by`, swept or not; None: by all that were swept. The runs of one column that differ in
    others compete. With `data_in_columns` the swept keys of the task stand in the columns too, and settings keep their
    names.
    """
    frame = frame.reset_index(drop=True)
    known = frame[frame["mixer"].notna()]
    swept = swept_keys(known)
    wanted = dict.fromkeys([*(swept if by is None else by), *(key for key in swept if key.startswith("task."))])
    keys = [key for key in wanted if key not in ("mixer", "mixer.name", "task.name", "task.setting")]
    told = {key: _told(known, key) for key in keys}
    for key, values in told.items():
        name = f"{key.partition('.')[0]}.name"
        if key.endswith("._target_") and name in told:  # where a name has one class, it says no more
            several = values.groupby([known["mixer"], told[name]]).transform("nunique") > 1
            told[key] = values.where(several, "")
    settings = known["setting"].astype(object)
    in_rows = sorted((key for key in keys if key.startswith("task.")), key=lambda key: key != _DATA)
    for key, name in short_names(in_rows).items():
        # What the name tells already, as the data does its vocabulary, is not told twice.
        several = told[key].groupby([known["task"], settings]).transform("nunique") > 1
        more = several.groupby(known["task"]).transform("any")
        told[key] = told[key].where(more, "")
        settings += [f", {name}={value}" if value else "" for value in told[key]]
    if data_in_columns:
        settings, in_rows = known["setting"].astype(object), []
    in_columns = [key for key in keys if key not in in_rows]

    @cache
    def column_of(mixer: str, *values: str) -> Column:
        return Column(mixer, tuple((key, value) for key, value in zip(in_columns, values, strict=True) if value))

    columns = list(map(column_of, known["mixer"], *(told[key] for key in in_columns)))
    several = known["score"].groupby([known["task"], settings]).transform("nunique") > 1  # it has got another since
    scores = zip(known["score"], several, strict=True)
    settings += [f", score={name}" if many and isinstance(name, str) else "" for name, many in scores]
    column = pd.Series(columns, known.index, dtype=object)
    return frame.assign(setting_name=frame["setting"], setting=settings, column=column)


def _class_around(frame: pd.DataFrame, key: str) -> list[str]:
    """The column of the class whose argument a key is, such as `optimizer.all._target_` of `optimizer.all.betas`."""
    part = key.rpartition(".")[0]
    target = f"{part}._target_"
    return [target] if "." in part and target in frame and target != key else []


def _told(frame: pd.DataFrame, key: str) -> pd.Series:
    """The values of a key where rows or columns are told by it, else the empty string.

    A key of a mixer or task tells those apart within which it differs (`num_heads` of one is not that of another), or
    if there is none, those that have it; one of an optimizer or schedule those that have it.
    """
    values, group = values_of(frame, key), key.partition(".")[0]
    has = frame[NAMES.get(key, key)].notna()
    if key == _DATA:  # generated rows are those of the setting's name
        return values.str[:8].where(has, "")
    if group in ("mixer", "task"):
        scope = "task" if group == "task" else "mixer"
        differs = values.groupby(frame[scope]).transform("nunique") > 1
        has = differs if differs.any() else has.groupby(frame[scope]).transform("any")
    elif group not in ("optimizer", "schedule") or key == f"{group}.name":
        has = pd.Series(True, frame.index)
    elif not key.endswith("._target_"):  # without a class there is nothing to tell
        within = ["mixer", group, *_class_around(frame, key)]
        has = has.groupby([frame[part] for part in within], dropna=False).transform("any")
    return values.where(has, "")
