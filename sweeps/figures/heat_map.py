"""All settings at once: a heat map for each task, with a line for each column of the tables."""

from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.records.best import Selection
from mixerlab.records.names import TASKS, in_order
from mixerlab.sweeps.figures.by_task import dots_sheet, height_of, names_beside
from mixerlab.sweeps.figures.difficulty import setting_text
from mixerlab.sweeps.figures.marks import CHOSEN
from mixerlab.sweeps.figures.points import score_name
from mixerlab.sweeps.figures.sheet import TICK, Layout, figure_style, text_width
from mixerlab.sweeps.figures.styles import brief_labels, styles

NO_SCORE: dict[str, Any] = {"hatch": "xxxxxx", "facecolor": "white", "edgecolor": "0.85"}


def heat_map(cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure:
    """The score of each setting (across) and column (down), as a colour and, where it fits, as a number."""
    columns, common = list(styles(cells["column"])), ""
    places = {column: place for place, column in enumerate(columns)}
    tasks = in_order(cells["task"], TASKS)
    settings = {task: list(dict.fromkeys(cells.loc[cells["task"] == task, "setting"])) for task in tasks}
    values = {task: np.full((len(columns), len(settings[task])), np.nan) for task in tasks}
    for cell in cells[cells["n"] > 0].itertuples():
        values[cell.task][places[cell.column], settings[cell.task].index(cell.setting)] = cell.mean
    score, common = score_name(cells), brief_labels(columns)[1]
    scale = _scale(score, np.concatenate([found.ravel() for found in values.values()]))
    most, digits = max(map(len, settings.values())), text_width(".00", TICK - 0.5) + 0.02
    with figure_style():
        sheet = dots_sheet(layout, len(tasks), columns, most * digits, most * 0.4)
        numbers = sheet.panel_width >= most * digits
        for panel, task in zip(sheet.panels, tasks, strict=True):
            _draw(panel, values[task], scale, numbers)
            panel.set_title(task)
            labels = [fill(setting_text(setting), 24, max_lines=3, placeholder="…") for setting in settings[task]]
            panel.set_xticks(np.arange(len(labels)) + 0.5, labels, rotation=90)
            panel.set_yticks(np.arange(len(columns)) + 0.5, names_beside(columns))
        levels = np.linspace(scale.vmin or 0, scale.vmax or 1, 5)
        handles: list[Artist] = [Patch(facecolor=_colour(scale(level)), label=f"{level:.3g}") for level in levels]
        if any(np.isnan(found).any() for found in values.values()):
            handles.append(Patch(label="no score", linewidth=0, **NO_SCORE))
        told = "; ".join([CHOSEN[selection], *([common] if common else [])])
        return sheet.finish(f"{score.capitalize()} by setting", told, handles, height_of(columns), whole=True)


def _scale(score: str, values: np.ndarray) -> Normalize:
    if score == "accuracy" or np.isnan(values).all():
        return Normalize(0, 1)
    return Normalize(np.nanmin(values), np.nanmax(values))


def _colour(share: float) -> tuple[float, float, float, float]:
    return colormaps["cividis"](share)


def _draw(panel: Axes, values: np.ndarray, scale: Normalize, numbers: bool) -> None:
    """The cells of a task; those without a score show the hatched ground."""
    panel.patch.set(**NO_SCORE)
    shown = np.ma.masked_invalid(values)
    panel.pcolormesh(shown, cmap="cividis", norm=scale, edgecolor="white", linewidth=0.4)
    for y, x in np.argwhere(~np.isnan(values)) if numbers else ():
        ink = "white" if scale(values[y, x]) < 0.6 else "black"
        text = f"{values[y, x]:.2f}"
        text = text.removeprefix("0") if values[y, x] < 0.995 else f"{values[y, x]:.1f}"
        panel.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=TICK - 0.5, color=ink)
    panel.set_ylim(len(values), 0)
    panel.grid(visible=False)
    panel.tick_params(length=0)
    for side in panel.spines.values():
        side.set_visible(False)
