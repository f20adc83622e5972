"""All settings at once: a heat map for each task, with a line for each column of the tables."""

import math
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.records.schema import Score
from mixerlab.sweeps.figures.by_task import height_beside, label_lines, named_sheet
from mixerlab.sweeps.figures.difficulty import setting_text
from mixerlab.sweeps.figures.marks import caption
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.figures.sheet import TICK, figure_style, text_width
from mixerlab.sweeps.figures.styles import short_labels
from mixerlab.sweeps.tables.tables import by_column

NUMBER = TICK - 0.5  # points
NO_SCORE: dict[str, Any] = {"hatch": "xxxxxx", "facecolor": "white", "edgecolor": "0.85"}


def heat_map(scores: Scores) -> Figure:
    """The score of each setting (across) and column (down): the better the brighter and, where it fits, as a number."""
    score = scores.score
    names = label_lines(scores.look)
    means = {task: by_column(scores.cells_on(task), "mean").astype(float).T for task in scores.tasks}
    signed = score.sign * np.concatenate([own.to_numpy().ravel() for own in means.values()])
    bounded = score.is_accuracy or np.isnan(signed).all()
    scale = Normalize(*((0, 1) if bounded else (np.nanmin(signed), np.nanmax(signed))))
    spread = float(scale.vmax - scale.vmin)  # type: ignore[operator]
    places = 2 if bounded or not spread else max(2, 1 - math.floor(math.log10(spread)))  # which tell scores apart
    most = max(len(own.columns) for own in means.values())
    digits = text_width(".00" if bounded else f"{0:.{places}f}", NUMBER) + 0.02
    with figure_style():
        sheet = named_sheet(scores.width, scores.tasks, names, most * digits, most * 0.4)
        for panel, own in zip(sheet.panels, means.values(), strict=True):
            _draw(panel, own.to_numpy(), score, scale, places if sheet.panel_width >= most * digits else None)
            labels = [fill(setting_text(setting), 24, max_lines=3) for _, setting in own]
            panel.set_xticks(range(len(labels)), labels, rotation=90)
        levels = np.linspace(scale.vmin, scale.vmax, 5)  # type: ignore[arg-type]
        colours = zip(colormaps["cividis"](scale(levels)), score.sign * levels, strict=True)
        handles: list[Artist] = [Patch(color=colour, label=f"{level:.{places}f}") for colour, level in colours]
        if np.isnan(signed).any():
            handles.append(Patch(label="no score", linewidth=0, **NO_SCORE))
        told = caption(scores.selection, (), short_labels(scores.look)[1])
        return sheet.finish(f"{score.label.capitalize()} by setting", told, handles, height_beside(names), whole=True)


def _draw(panel: Axes, values: np.ndarray, score: Score, scale: Normalize, places: int | None) -> None:
    """The cells of a task, float [columns, settings], as numbers with `places`; those without (NaN) are hatched."""
    panel.patch.set(**NO_SCORE)
    panel.imshow(np.ma.masked_invalid(score.sign * values), cmap="cividis", norm=scale, aspect="auto")
    panel.grid(visible=False)
    panel.tick_params(length=0)
    for y, x in np.argwhere(~np.isnan(values)) if places else ():
        text = f"{values[y, x]:.{places}f}".removeprefix("0")
        text = "1.0" if score.is_accuracy and text == "1.00" else text
        ink = "white" if scale(score.sign * values[y, x]) < 0.6 else "black"
        panel.text(x, y, text, ha="center", va="center", fontsize=NUMBER, color=ink)
