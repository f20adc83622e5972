"""The training curves of the best learning rates."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mixerlab.records.best import Selection
from mixerlab.records.files import read_metrics, run_folder
from mixerlab.records.names import TASKS, in_order, setting_rank
from mixerlab.sweeps.figures.canvas import TICK, TWO_COLUMNS, Layout, Sheet, looks
from mixerlab.sweeps.figures.curves import Curve, carried_forward
from mixerlab.sweeps.figures.marks import (
    ACCURACY_LIMITS,
    CHOSEN,
    Handles,
    chance_line,
    legend_of,
    line_handles,
    setting_title,
)
from mixerlab.sweeps.figures.styles import Style, styles
from mixerlab.sweeps.figures.ticks import loss_ticks


def training_curves(
    results_dir: str | Path, cells: pd.DataFrame, selection: Selection, layout: Layout = TWO_COLUMNS
) -> Figure:
    """Accuracy and, below, training loss (nats) by epoch, for each task, at the best learning rate.

    Of each task the setting that most mixers have, the baseline before others. Several seeds are their mean and range.
    Accuracy is on test (`official`) or on validation (`clean`).
    """
    split = {"official": "test", "clean": "val"}[selection]
    look, tasks = styles(cells["mixer"]), in_order(cells["task"], TASKS)
    explain: Handles = {}
    with looks():
        sheet = Sheet(layout)
        per_line = sheet.per_line(len(tasks))
        above, below, settings = [], [], []
        for task in tasks:
            of_task = cells[cells["task"] == task]
            columns = of_task[of_task["n"] > 0]["setting"].value_counts()
            setting = min(of_task["setting"], key=lambda one: (-columns.get(one, 0), setting_rank(one)))
            settings.append(setting)
            of_setting = of_task[of_task["setting"] == setting]
            accuracy, loss = sheet.panel(setting_title(task, setting)), sheet.panel()
            metrics, without = _metrics_of(results_dir, of_setting, ("epoch", f"{split}_accuracy", "train_loss"))
            _curves(accuracy, metrics, f"{split}_accuracy", look)
            _curves(loss, metrics, "train_loss", look)
            explain |= chance_line(accuracy, float(of_setting["chance"].iloc[0]))
            if without:
                names = f"no curve: {', '.join(without)}"
                accuracy.text(
                    0.97,
                    0.14,  # above the line of chance
                    names if len(names) <= 30 else f"no curve of {len(without)}",
                    transform=accuracy.transAxes,
                    ha="right",
                    fontsize=TICK,
                    color="0.4",
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
                )
            accuracy.set_ylim(*ACCURACY_LIMITS)
            loss.set_yscale("log")
            loss.set_xlabel("epoch")
            above.append(accuracy)
            below.append(loss)
        lines = []
        for first in range(0, len(tasks), per_line):
            lines += [above[first : first + per_line], below[first : first + per_line]]
            _same_limits(lines[-1])  # the first panel of a line has the tick labels of all
        for panel in below:
            loss_ticks(panel)
        ylabels = (f"accuracy on {split}", "training loss (nats)")
        handles = legend_of(line_handles(look), explain)
        under = CHOSEN[selection]
        if set(settings) == {"baseline"}:  # otherwise the titles say which
            under = f"baselines; {under}"
        if any(panel.collections for panel in sheet.panels):
            under += "; line and band: mean and range over seeds"
        return sheet.arrange("Training curves", under, handles, lines, per_line, ylabels, height=0.85, below=0.34)


def _same_limits(panels: Sequence[Axes]) -> None:
    limits = [panel.get_ylim() for panel in panels if panel.lines]
    for panel in panels if limits else ():
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _metrics_of(
    results_dir: str | Path, of_setting: pd.DataFrame, columns: Sequence[str]
) -> tuple[dict[str, list[Curve]], list[str]]:
    """By mixer the `columns` of each replica of its best learning rate, and the mixers without any."""
    found: dict[str, list[Curve]] = {}
    without = []
    for cell in of_setting.itertuples():
        for run_id, replicas in _by_run(cell.replicas).items():
            try:
                metrics = read_metrics(run_folder(results_dir, run_id))
            except ValueError:  # which `sweeps.collect` has put among the unreadable
                continue
            if metrics is not None:
                drawn = {column: metrics[column].to_numpy() for column in ("replica", *columns)}
                own = [drawn["replica"] == replica for replica in replicas]
                found.setdefault(cell.mixer, []).extend({name: drawn[name][rows] for name in columns} for rows in own)
        if cell.mixer not in found:
            without.append(cell.mixer)
    return found, without


def _by_run(replicas: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for run_id, replica in replicas:
        found.setdefault(run_id, []).append(replica)
    return found


def _curves(panel: Axes, metrics: Mapping[str, Sequence[Curve]], column: str, look: Mapping[str, Style]) -> None:
    """One line per mixer: the mean over its replicas, and their range. Files count epochs from 0, figures from 1.

    The replicas have all finished; one that was frozen counts with its last values until the last one ends.
    """
    for mixer, replicas in metrics.items():
        epochs = np.unique(np.concatenate([replica["epoch"] for replica in replicas]))
        replicas = [carried_forward(replica, epochs) for replica in replicas]
        place = np.searchsorted(epochs, np.concatenate([replica["epoch"] for replica in replicas]))
        values = np.concatenate([replica[column] for replica in replicas])
        place, values = place[~np.isnan(values)], values[~np.isnan(values)]
        sums, counts = np.bincount(place, values, len(epochs)), np.bincount(place, minlength=len(epochs))
        mean = np.divide(sums, counts, out=np.full(len(epochs), np.nan), where=counts > 0)
        # Markers at every fifth of a curve's length; a single point has none.
        every, size = (0.2, 3) if len(epochs) > 1 else (1, 4.5)
        style = look[mixer]
        panel.plot(
            epochs + 1, mean, color=style.colour, label=mixer, marker=style.marker, markersize=size, markevery=every,
            markeredgewidth=0,
        )  # fmt: skip
        if len(replicas) > 1:
            low, high = mean.copy(), mean.copy()
            np.minimum.at(low, place, values)
            np.maximum.at(high, place, values)
            panel.fill_between(epochs + 1, low, high, color=style.colour, alpha=0.2, linewidth=0)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4, min_n_ticks=1))
