"""Training curves: at the best learning rates of a sweep, and of all replicas of a run."""

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from mixerlab.records.best import Selection
from mixerlab.records.files import read_config, read_metrics, read_record, run_folder
from mixerlab.records.names import TASKS, in_order, setting_rank
from mixerlab.sweeps.figures.axis import short_number
from mixerlab.sweeps.figures.difficulty import setting_title
from mixerlab.sweeps.figures.marks import CHANCE, CHOSEN, limit, line_handles
from mixerlab.sweeps.figures.points import score_name
from mixerlab.sweeps.figures.sheet import Layout, Sheet, figure_style
from mixerlab.sweeps.figures.styles import styles

SPLITS = {"official": "test", "clean": "val"}
MEAN_AND_RANGE = "line and band: mean and range over seeds"


def training_curves(results_dir: str | Path, cells: pd.DataFrame, selection: Selection, layout: Layout) -> Figure:
    """The score and, below it, training loss (nats) by epoch, for each task, at the best learning rate.

    Of each task the setting that most columns have, the baseline before others. Several seeds are their mean and range.
    The score is on test (`official`) or on validation (`clean`).
    """
    look, tasks = styles(cells["column"]), in_order(cells["task"], TASKS)
    name, split = score_name(cells), SPLITS[selection]
    without: dict[str, list[str]] = {}
    several = False
    with figure_style():
        sheet = Sheet(layout, len(tasks), stacked=2, sharey="row")
        for number, task in enumerate(tasks):
            score, loss = sheet.panels[2 * number : 2 * number + 2]
            own = _usual_setting(cells[cells["task"] == task])
            title = setting_title(task, own["setting"].iloc[0])
            for cell in own.itertuples():
                metrics, style = _metrics(results_dir, cell.replicas), look[cell.column]
                if metrics is None:
                    without.setdefault(title, []).append(cell.mixer)
                    continue
                several |= metrics["replica"].nunique() > 1
                for panel, column in ((score, f"{split}_{name}"), (loss, "train_loss")):
                    curves = by_replica(metrics, column, finished=metrics["replica"].unique())
                    draw_curves(panel, curves, style.colour, marker=style.marker, markevery=0.2)
            score.axhline(own["chance"].iloc[0], zorder=1.5, **CHANCE)
            score.set_title(title)
            limit(score, name)
            show_epochs(score, loss)
        for panel in sheet.panels[::2]:
            panel.set_ylabel(f"{name} on {split}")
        log_loss(sheet.panels[1::2])
        lacking = "; ".join(f"no curve on {title}: {', '.join(names)}" for title, names in without.items())
        told = [CHOSEN[selection], *([MEAN_AND_RANGE] if several else []), *([lacking] if lacking else [])]
        handles = [*line_handles(look), Line2D([], [], label="chance", **CHANCE)]
        return sheet.finish("Training curves", "; ".join(told), handles, height=0.85)


def _usual_setting(own: pd.DataFrame) -> pd.DataFrame:
    """The cells of a task at the setting that most columns have a score at; the first in order between equals."""
    counts = own[own["n"] > 0]["setting"].value_counts()
    return own[own["setting"] == min(own["setting"], key=lambda one: (-counts.get(one, 0), setting_rank(one)))]


def _metrics(results_dir: str | Path, replicas: Iterable[tuple[str, int]]) -> pd.DataFrame | None:
    """The metrics of these (run_id, replica); None if there are none that can be read."""
    found = []
    for run_id, replica in replicas:
        try:
            metrics = read_metrics(run_folder(results_dir, run_id))
        except ValueError:  # which `collect` has put among the unreadable
            continue
        if metrics is not None:
            found.append(metrics[metrics["replica"] == replica].assign(replica=f"{run_id} {replica}"))
    return pd.concat(found) if found else None


def by_replica(metrics: pd.DataFrame, column: str, finished: Collection[Any]) -> pd.DataFrame:
    """A column of metrics by epoch, counted from 1, and replica: float [epochs, replicas].

    A replica that finished early (`trainer.stop_when_perfect`, `trainer.stop_above`) keeps what it has learned: without
    it the mean would fall when the best one is done. One that diverged has nothing to keep.
    """
    values = metrics.pivot(index="epoch", columns="replica", values=column)
    values.index += 1  # files count from 0, figures and progress from 1
    done = [replica for replica in values if replica in finished]
    values[done] = values[done].ffill()
    return values


def draw_curves(panel: Axes, values: pd.DataFrame, colour: Any, **look: Any) -> None:
    """The mean over replicas and, of several, their range; a curve of one epoch is a point."""
    mean = values.mean(axis="columns")
    if len(mean) == 1:
        look = {"marker": "o", **look, "markevery": None}
    panel.plot(mean.index, mean, color=colour, markersize=3, markeredgewidth=0, **look)
    if values.shape[1] > 1:
        low, high = values.min(axis="columns"), values.max(axis="columns")
        panel.fill_between(mean.index, low, high, color=colour, alpha=0.2, linewidth=0)


def show_epochs(*panels: Axes) -> None:
    """Whole epochs below the last of the panels."""
    for panel in panels:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4, min_n_ticks=1))
        panel.tick_params(labelbottom=panel is panels[-1])
    panels[-1].set_xlabel("epoch")


def log_loss(panels: Sequence[Axes]) -> None:
    """A logarithmic axis with ticks at 1, 2 and 5, or at decades where there are many."""
    for panel in panels:
        panel.set_ylabel("training loss (nats)")
        if not panel.lines:
            continue
        panel.set_yscale("log")
        lowest, highest = panel.get_ylim()
        # Of several decades and parts of them, the locator would show none in so small a panel.
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if highest < 30 * lowest else (1,), numticks=6))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.yaxis.set_minor_locator(NullLocator())


def run_curves(folder: Path) -> Figure:
    """Training loss (nats) and the score on validation and test by epoch, a colour for each learning rate of a run.

    Several seeds of a rate are their mean and range. A seed that was frozen counts with its last values until the last
    seed ends; one that diverged counts until it did.

    Raises:
        ValueError: a file that is missing or damaged; says which.
    """
    config, metrics, record = read_config(folder), read_metrics(folder), read_record(folder)
    if config is None or metrics is None or record is None:
        raise ValueError(f"{folder} lacks its config, its metrics or its record")
    finished = {row["replica"] for row in record.rows if row["status"] == "finished"}
    rates = sorted(metrics["lr"].unique())
    colours = [colormaps["viridis"](0.92 * place / max(len(rates) - 1, 1)) for place in range(len(rates))]
    handles: list[Artist] = []
    columns = ("train_loss", f"val_{record.score.name}", f"test_{record.score.name}")
    with figure_style():
        sheet = Sheet(Layout(), len(columns), sharey=False)
        for rate, colour in zip(rates, colours, strict=True):
            own = metrics[metrics["lr"] == rate]
            for panel, column in zip(sheet.panels, columns, strict=True):
                draw_curves(panel, by_replica(own, column, finished), colour)
            ended = [row["status"] == "diverged" for row in record.rows if row["lr"] == rate]
            diverged = f" ({sum(ended)} of {len(ended)} diverged)" if any(ended) else ""
            handles.append(Line2D([], [], color=colour, label=f"lr {short_number(rate)}{diverged}"))
        for panel, split in zip(sheet.panels[1:], ("val", "test"), strict=True):
            panel.set_ylabel(f"{record.score.name} on {split}")
            limit(panel, record.score.name)
        sheet.panels[0].set_ylabel("training loss (nats)")
        for panel in sheet.panels:
            show_epochs(panel)
        title = setting_title(f"{config['mixer']['name']} on {config['task']['name']}", config["task"]["setting"])
        several = MEAN_AND_RANGE if metrics["replica"].nunique() > len(rates) else ""
        return sheet.finish(title, several, handles, height=1.5)
