"""Scores against how hard a task is: by difficulty, by length, and by level of the harder set."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import BASELINE, TASKS, axis_of, in_order, is_challenge, origin_of
from mixerlab.sweeps.figures.axis import Panel, draw_panels, short_number
from mixerlab.sweeps.figures.points import Point, cell_point
from mixerlab.sweeps.figures.sheet import Layout
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.lengths import length_of_training

AXIS_LABELS = {
    "vocab_size": "vocabulary size",
    "seq_len": "length (tokens)",
    "test_seq_len": "test length (tokens)",
    "num_train_examples": "training examples",
    "frac_noise": "share of noise",
    "num_tokens_to_copy": "tokens to copy",
}
# Values of one's own, as a reader says them.
_SPOKEN = {"num_train_examples": "{} training examples", "test_seq_len": "tested at {}"}


def setting_title(task: str, setting: str) -> str:
    """What a panel about a setting is called: `icr`, `icr seq_len-256`, `icr 100k training examples`."""
    spoken = []
    for part in [] if setting == BASELINE else setting.split(","):
        key, equals, value = part.strip().partition("=")
        told = key in _SPOKEN and equals and value.isdecimal()
        spoken.append(_SPOKEN[key].format(short_number(float(value))) if told else part.strip())
    return " ".join([task, *([", ".join(spoken)] if spoken else [])])


def difficulty(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure | None:
    """The score against each axis of difficulty, the baseline included: a panel per task and axis.

    Args:
        frame: one row per replica; has the value of the axis at the baseline.
        cells: as `best_per_cell` gives them.

    Returns:
        None if no task has an axis.
    """
    return _by_axis(frame, cells, selection, layout, "by difficulty", None)


def lengths(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure | None:
    """The score against the length of the sequences: trained at each, or tested at others than trained at.

    None if no task has several lengths.
    """
    return _by_axis(frame, cells, selection, layout, "by length", ("seq_len", "test_seq_len"))


def harder_set(cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure:
    """The score against the levels of each task of the harder set."""
    panels = []
    for task in in_order(cells["task"], TASKS):
        own = cells[cells["task"] == task]
        levels = list(dict.fromkeys(own["setting"]))
        points: dict[Column, dict[float, Point]] = {}
        for cell in own.itertuples():
            points.setdefault(cell.column, {})[levels.index(cell.setting)] = cell_point(cell)
        chance = {levels.index(cell.setting): float(cell.chance) for cell in own.itertuples()}
        panels.append(Panel(task.removesuffix("_challenge"), "", points, chance, names=levels))
    score = cells["score"].iloc[0]
    return draw_panels(panels, styles(cells["column"]), score, selection, f"{score.capitalize()} on the harder set", layout)


def _by_axis(
    frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout, what: str, only: Sequence[str] | None
) -> Figure | None:
    panels = []
    for task in in_order((task for task in cells["task"] if not is_challenge(task)), TASKS):
        own = cells[cells["task"] == task]
        axes = [axis[0] for axis in map(axis_of, own["setting"].unique()) if axis is not None]
        wanted = [axis for axis in axes if only is None or origin_of(axis)[1] in only]
        found = [_along(frame, own, axis) for axis in in_order(wanted, tuple(AXIS_LABELS))]
        panels += [panel for panel in found if len(panel.values) > 1]
    if not panels:
        return None
    score = cells["score"].iloc[0]
    return draw_panels(panels, styles(cells["column"]), score, selection, f"{score.capitalize()} {what}", layout)


def _along(frame: pd.DataFrame, own: pd.DataFrame, axis: str) -> Panel:
    """The scores of a task along one axis of its settings, with the setting from which it departs."""
    task = str(own["task"].iloc[0])
    origin, key = origin_of(axis)
    start = _value_at(frame, task, origin, "seq_len" if key == "test_seq_len" else key)
    points: dict[Column, dict[float, Point]] = {}
    chance: dict[float, float] = {}
    for cell in own.itertuples():
        place = axis_of(cell.setting)
        x = start if cell.setting == origin else place[1] if place and place[0] == axis else None
        if x is not None:
            points.setdefault(cell.column, {})[x] = cell_point(cell)
            chance[x] = float(cell.chance)
    trained = length_of_training(frame, task, origin) if key == "test_seq_len" else None
    label = AXIS_LABELS.get(key, key) if trained is None else f"test length (trained at {trained})"
    return Panel(setting_title(task, origin), label, points, chance)


def _value_at(frame: pd.DataFrame, task: str, setting: str, key: str) -> float | None:
    """The value of a key of the task at a setting; None if no row has it as a number."""
    if f"task.{key}" not in frame:
        return None
    values = frame.loc[(frame["task"] == task) & (frame["setting"] == setting), f"task.{key}"]
    numbers = pd.to_numeric(values, errors="coerce").dropna()  # a stranger's may be anything
    return float(numbers.iloc[0]) if len(numbers) else None
