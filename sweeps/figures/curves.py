"""Training curves: of the best learning rates of a sweep, and of all replicas of a run."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from mixerlab.records.best import Selection
from mixerlab.records.files import read_config, read_metrics, read_record, run_folder
from mixerlab.records.names import TASKS, in_order, setting_rank
from mixerlab.sweeps.figures.axis import short_number
from mixerlab.sweeps.figures.difficulty import setting_title
from mixerlab.sweeps.figures.marks import CHANCE, CHOSEN, MARKER, limit, line_handles
from mixerlab.sweeps.figures.sheet import TICK, Layout, Sheet, figure_style
from mixerlab.sweeps.figures.styles import styles

SPLITS = {"official": "test", "clean": "val"}


def training_curves(results_dir: str | Path, cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure:
    """The score and, below it, training loss (nats) by epoch, for each task, at the best learning rate.

    Of each task the setting that most columns have, the baseline before others. Several seeds are their mean and range.
    The score is on test (`official`) or on validation (`clean`).
    """
    look, tasks = styles(cells["column"]), in_order(cells["task"], TASKS)
    name, split = cells["score"].iloc[0], SPLITS[selection]
    shown = [_usual_setting(cells[cells["task"] == task]) for task in tasks]
    several = without_any = False
    with figure_style():
        sheet = Sheet(layout, len(tasks), stacked=2, sharey="row")
        for number, (task, own) in enumerate(zip(tasks, shown, strict=True)):
            score, loss = sheet.panels[2 * number : 2 * number + 2]
            without = []
            for cell in own.itertuples():
                metrics, style = _metrics(results_dir, cell.replicas), look[cell.column]
                if metrics is None:
                    without.append(cell.mixer)
                    continue
                several |= metrics["replica"].nunique() > 1
                for panel, column in ((score, f"{split}_{name}"), (loss, "train_loss")):
                    curves = by_replica(metrics, column, set(metrics["replica"]))
                    draw_curves(panel, curves, style.colour, style.marker)
            score.axhline(own["chance"].iloc[0], zorder=1.5, **CHANCE)
            score.set_title(setting_title(task, own["setting"].iloc[0]))
            limit(score, name)
            _limit_loss(loss)
            if without:
                without_any = True
