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
    """`length 256` for `seq_len-256`, and `examples 100k, tested at 512` for `num_train_examples=100000,test_...`."""
    texts = []
    for part in setting.split(","):
        axis = axis_of(part.strip())
        known = axis is not None and axis[0] in AXES
        texts.append(f"{AXES[axis[0]][1]} {short_number(axis[1])}" if axis is not None and known else part.strip())
    return ", ".join(texts)


def setting_title(name: str, setting: str) -> str:
    """What a panel about a setting is called: `icr`, `icr, length 256`."""
    return name if setting == BASELINE else f"{name}, {setting_text(setting)}"


def difficulty(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure | None:
    """The score against each axis of difficulty, the baseline included: a panel per task and axis.

    Args:
        frame: as `spread_out` gives it; has the value of the axis at the baseline.
        cells: as `best_per_cell` gives them.
        selection: what chose checkpoint and learning rate.
        layout: how wide the figure is, and whether it has a heading.

    Returns:
        None if no task has an axis.
    """
    panels = _panels(frame, cells, tuple(AXES), others=True)
    return draw_panels(panels, styles(cells["column"]), cells, selection, "by difficulty", layout)


def lengths(frame: pd.DataFrame, cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure | None:
    """The score against the length of the sequences: trained at each, or tested at others than trained at.

    None if no task has several lengths; otherwise as `difficulty`.
    """
    panels = _panels(frame, cells, ("seq_len", "test_seq_len"), others=False)
    return draw_panels(panels, styles(cells["column"]), cells, selection, "by length", layout)


def harder_set(cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure | None:
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
    return draw_panels(panels, styles(cells["column"]), cells, selection, "on the harder set", layout)


def _panels(frame: pd.DataFrame, cells: pd.DataFrame, keys: Sequence[str], others: bool) -> list[Panel]:
    """The axes with several values, of each task; `others`: also of other keys than these."""
    panels = []
    for task in in_order((task for task in cells["task"] if not is_challenge(task)), TASKS):
        own = cells[cells["task"] == task]
        axes = [axis[0] for axis in map(axis_of, own["setting"].unique()) if axis is not None]
        wanted = [axis for axis in axes if others or origin_of(axis)[1] in keys]
        panels += [_along(frame, own, axis) for axis in in_order(wanted, tuple(keys))]
    return [panel for panel in panels if len(panel.values) > 1]


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
    label = AXES.get(key, (key,))[0]
    if key == "test_seq_len" and (trained := length_of_training(frame, task, origin)) is not None:
        label = f"test length (trained at {trained})"
    return Panel(setting_title(task, origin), label, points, chance)


def _value_at(frame: pd.DataFrame, task: str, setting: str, key: str) -> float | None:
    """The value of a key of the task at a setting; None if no row has it as a number."""
    if f"task.{key}" not in frame:
        return None
    values = frame.loc[(frame["task"] == task) & (frame["setting"] == setting), f"task.{key}"]
    numbers = pd.to_numeric(values, errors="coerce").dropna()  # a stranger's may be anything
    return float(numbers.iloc[0]) if len(numbers) else None
