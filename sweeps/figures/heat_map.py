"""All settings at once: a heat map for each task, with a line for each column of the tables."""

from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.sweeps.figures.by_task import height_beside, named_sheet
from mixerlab.sweeps.figures.difficulty import setting_text
from mixerlab.sweeps.figures.marks import caption
from mixerlab.sweeps.figures.points import Scores
from mixerlab.sweeps.figures.sheet import TICK, figure_style, text_width
from mixerlab.sweeps.figures.styles import short_labels

NUMBER = TICK - 0.5  # points
NO_SCORE: dict[str, Any] = {"hatch": "xxxxxx", "facecolor": "white", "edgecolor": "0.85"}


def heat_map(scores: Scores) -> Figure:
    """The score of each setting (across) and column (down), as a colour and, where it fits, as a number."""
    lines = {column: line for line, column in enumerate(scores.look)}
    settings = {task: list(dict.fromkeys(scores.cells_on(task)["setting"])) for task in scores.tasks}
    values = {task: np.full((len(lines), len(own)), np.nan) for task, own in settings.items()}
    for cell in scores.cells[scores.cells["n"] > 0].itertuples():
        values[cell.task][lines[cell.column], settings[cell.task].index(cell.setting)] = cell.mean
    everything = np.concatenate([own.ravel() for own in values.values()])
    bounded = scores.name == "accuracy" or np.isnan(everything).all()
    scale = Normalize(*((0, 1) if bounded else (np.nanmin(everything), np.nanmax(everything))))
    most, digits = max(map(len, settings.values())), text_width(".00", NUMBER) + 0.02
    with figure_style():
        sheet = named_sheet(scores.width, scores.tasks, lines, most * digits, most * 0.4)
        for panel, (task, own) in zip(sheet.panels, values.items(), strict=True):
            _draw(panel, own, scale, numbers=sheet.panel_width >= most * digits)
            labels = [fill(setting_text(setting), 24, max_lines=3) for setting in settings[task]]
            panel.set_xticks(range(len(labels)), labels, rotation=90)
        levels = np.linspace(scale.vmin, scale.vmax, 5)  # type: ignore[arg-type]
        handles: list[Artist] = [Patch(color=colormaps["cividis"](scale(one)), label=f"{one:.3g}") for one in levels]
        if np.isnan(everything).any():
            handles.append(Patch(label="no score", linewidth=0, **NO_SCORE))
        told = caption(scores.selection, (), short_labels(lines)[1])
        return sheet.finish(f"{scores.name.capitalize()} by setting", told, handles, height_beside(lines), whole=True)


def _draw(panel: Axes, values: np.ndarray, scale: Normalize, numbers: bool) -> None:
    """The cells of a task, float [columns, settings]; those without a score (NaN) show the hatched ground."""
    panel.patch.set(**NO_SCORE)
    panel.imshow(np.ma.masked_invalid(values), cmap="cividis", norm=scale, aspect="auto")
    panel.grid(visible=False)
    panel.tick_params(length=0)
    for y, x in np.argwhere(~np.isnan(values)) if numbers else ():
        text = f"{values[y, x]:.2f}".removeprefix("0") if values[y, x] < 0.995 else f"{values[y, x]:.1f}"
        ink = "white" if scale(values[y, x]) < 0.6 else "black"
        panel.text(x, y, text, ha="center", va="center", fontsize=NUMBER, color=ink)
