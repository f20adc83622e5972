"""Scores against how hard a task is: by difficulty, and by level of the harder set."""

from collections.abc import Collection

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.names import BASELINE, axis_of, is_challenge, natural, rank
from mixerlab.sweeps.figures.axis import Panel, draw_panels, short_number
from mixerlab.sweeps.figures.scores import Scores

# What a key of a task is called on an axis, and before its value.
AXES = {
    "vocab_size": ("vocabulary size", "vocabulary"),
    "seq_len": ("length (tokens)", "length"),
    "test_seq_len": ("test length (tokens)", "tested at"),
    "num_train_examples": ("training examples", "examples"),
    "frac_noise": ("share of noise", "noise"),
    "num_tokens_to_copy": ("tokens to copy", "to copy"),
}


def setting_text(setting: str) -> str:
    """`length 256` for `seq_len-256`, `examples 100k, depth=2` for `num_train_examples=100000,depth=2`."""
    texts = []
    for part in map(str.strip, setting.split(",")):
        _, key, value = axis_of(part) or ("", "", 0.0)
        texts.append(f"{AXES[key][1]} {short_number(value)}" if key in AXES else part)
    return ", ".join(texts)


def setting_title(name: str, setting: str) -> str:
    """What a panel about a setting is called: `icr`, `icr, length 256`."""
    return name if setting == BASELINE else f"{name}, {setting_text(setting)}"


def difficulty(scores: Scores) -> Figure | None:
    """The score against each axis of difficulty, the baseline included: a panel per task and axis; None without any.

    A length is that of training, or of test rows where these have another.
    """
    panels = []
    for task in (task for task in scores.tasks if not is_challenge(task)):
        own, frame = scores.cells_on(task), scores.frame[scores.frame["task"] == task]
        shared, names = _without_shared(own["setting"].unique())
        own, frame = (one.assign(setting=one["setting"].map(names)) for one in (own, frame))
        settings = {setting: axis_of(setting) for setting in names.values()}
        axes = {(key, origin) for origin, key, _ in filter(None, settings.values())}
        for key, origin in sorted(axes, key=lambda axis: (rank(axis[0], tuple(AXES)), natural(axis[1]))):
            places = {setting: axis[2] for setting, axis in settings.items() if axis and axis[:2] == (origin, key)}
            start = _value_at(frame, {origin}, key)
            if key == "test_seq_len":
                start = _value_at(frame, {origin, *places}, "seq_len")
            if origin in settings and start is not None:
                places[origin] = start
            label = AXES.get(key, (key,))[0]
            if key == "test_seq_len" and start is not None:
                label = f"test length (trained at {start:g})"
            if len(places) > 1:
                title = setting_title(task, ",".join([origin] * (origin != BASELINE) + shared) or BASELINE)
                panels.append(Panel(title, label, *_along(own, places)))
    return draw_panels(scores, panels, "by difficulty")


def harder_set(scores: Scores) -> Figure | None:
    """The score against the levels of each task of the harder set."""
    panels = []
    for task in scores.tasks:
        own = scores.cells_on(task)
        places = {level: float(place) for place, level in enumerate(dict.fromkeys(own["setting"]))}
        points, chance = _along(own, places)
        panels.append(Panel(task.removesuffix("_challenge"), "", points, chance, names=list(places)))
    return draw_panels(scores, panels, "on the harder set")


def _along(own: pd.DataFrame, places: dict[str, float]) -> tuple[pd.DataFrame, pd.Series]:
    """The points by place and column of the settings that have one, and the chance by place."""
    own = own.assign(place=own["setting"].map(places)).dropna(subset="place")
    return own.groupby(["place", "column"])["entry"].last().unstack(), own.groupby("place")["chance"].last()


def _without_shared(settings: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """The sizes of one's own that all of several settings have, `num_train_examples=512`; their names without these."""
    parts = {setting: setting.split(",") for setting in settings}
    first = next(iter(parts.values())) if len(parts) > 1 else []
    shared = [part for part in first if "=" in part and all(part in others for others in parts.values())]
    left = {setting: ",".join(part for part in own if part not in shared) for setting, own in parts.items()}
    return shared, {setting: name or BASELINE for setting, name in left.items()}


def _value_at(frame: pd.DataFrame, settings: Collection[str], key: str) -> float | None:
    """The value of a key of a task at the first of these settings that has it as a number; None if none has."""
    values = frame.loc[frame["setting"].isin(settings)].get(f"task.{key}", [])
    numbers = pd.to_numeric(pd.Series(values, dtype=object), errors="coerce").dropna()
    return float(numbers.iloc[0]) if len(numbers) else None
