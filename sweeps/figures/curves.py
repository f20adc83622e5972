"""Training curves: at the best learning rates of a sweep, and of all replicas of a run."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from mixerlab.records.files import Unreadable, read_config, read_metrics, read_record, run_folder
from mixerlab.sweeps.figures.axis import short_number
from mixerlab.sweeps.figures.difficulty import setting_title
from mixerlab.sweeps.figures.marks import CHANCE, caption, limit, line_handles, mark_handles
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.figures.sheet import Sheet, figure_style
from mixerlab.sweeps.tables.columns import labels

SPLITS = {"official": "test", "clean": "val"}
SEEDS = "line and band: mean and range over seeds"


def training_curves(scores: Scores, *results_dirs: Path) -> Figure | None:
    """The score by epoch, or by tokens, for each task, at the best learning rates of its first setting.

    Several seeds are their mean and range. The score is on test (`official`) or on validation (`clean`). None if there
    is no curve.
    """
    split, without, several, drawn = SPLITS[scores.selection], list[str](), False, False
    names = labels(scores.look)
    with figure_style():
        shown = [own[own["setting"] == own["setting"].iloc[0]] for own in map(scores.cells_on, scores.tasks)]
        sheet = Sheet(scores.width, [setting_title(*own[["task", "setting"]].iloc[0]) for own in shown])
        for panel, own in zip(sheet.panels, shown, strict=True):
            tokens = False
            for cell in own.itertuples():
                metrics, style = _metrics(results_dirs, cell.replicas), scores.look[cell.column]
                if metrics is None:
                    if cell.n:  # the tables say which cells have no score
                        without.append(f"; no curve of {names[cell.column]} on {cell.task}")
                    continue
                several, drawn = several or metrics["replica"].nunique() > 1, True
                tokens = "token" in metrics
                curves = by_replica(metrics, f"{split}_{scores.score.name}", finished=metrics["replica"].unique())
                draw_curves(panel, curves, style.colour, marker=style.marker, markevery=0.2)
            panel.axhline(own["chance"].iloc[0], zorder=1.5, **CHANCE)
            limit(panel, scores.score)
            show_epochs(panel, tokens)
        if not drawn:
            return None
        for panel in sheet.panels[:: sheet.columns]:
            panel.set_ylabel(f"{scores.score.label} on {split}")
        is_part = any(own["setting"].nunique() > 1 for own in map(scores.cells_on, scores.tasks))
        first = "; of each task its first setting" if is_part else ""
        told = caption(scores.selection, (), SEEDS if several else "") + first + "".join(without)
        handles = [*line_handles(scores.look), *mark_handles((), scores.has_chance)]
        return sheet.finish("Training curves", told, handles, height=0.95)


def _metrics(results_dirs: Iterable[Path], replicas: Iterable[tuple[str, int]]) -> pd.DataFrame | None:
    """The metrics of these (run_id, replica); None if there are none that can be read."""
    found = []
    for run_id, replica in replicas:
        for results_dir in results_dirs:
            with suppress(Unreadable):  # the caption says of which score there is no curve
                if (metrics := read_metrics(run_folder(results_dir, run_id))) is not None:
                    found.append(metrics[metrics["replica"] == replica].assign(replica=f"{run_id} {replica}"))
                    break
    return pd.concat(found) if found else None


def by_replica(metrics: pd.DataFrame, column: str, finished: Collection[Any]) -> pd.DataFrame:
    """A column of metrics by epoch, counted from 1, or by tokens, and replica: float [epochs, replicas].

    A replica that finished early (`trainer.stop_when_perfect`, `trainer.stop_above`) keeps what it has learned: without
    it the mean would fall when the best one is done. One that diverged has nothing to keep.
    """
    values = metrics.pivot(index="epoch", columns="replica", values=column)
    # Files count from 0, figures and progress from 1.
    values.index = metrics.groupby("epoch")["token"].max() if "token" in metrics else values.index + 1
    done = [replica for replica in values if replica in finished]
    values[done] = values[done].ffill()
    return values


def draw_curves(panel: Axes, values: pd.DataFrame, colour: Any, **look: Any) -> None:
    """The mean over replicas and, of several, their range; a curve of one epoch is a point."""
    mean = values.mean(axis="columns")
    if mean.notna().sum() == 1:
        look |= {"marker": "o", "markevery": None}
    panel.plot(mean.index, mean, color=colour, markersize=3, markeredgewidth=0, **look)
    if values.shape[1] > 1:
        low, high = values.min(axis="columns"), values.max(axis="columns")
        panel.fill_between(mean.index, low, high, color=colour, alpha=0.2, linewidth=0)


def show_epochs(panel: Axes, tokens: bool = False) -> None:
    """The axis of epochs, or of `tokens`."""
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4, min_n_ticks=1))
    panel.set_xlabel("epoch")
    if tokens:
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.set_xlabel("tokens")


def run_curves(folder: Path) -> Figure:
    """Training loss (nats) and the score on validation and test by epoch, a colour for each learning rate of a run.

    Several seeds of a rate are their mean and range. A seed that was frozen counts with its last values until the last
    seed ends; one that diverged counts until it did.
    """
    config, metrics, record = read_config(folder), read_metrics(folder), read_record(folder)
    if config is None or metrics is None or record is None:
        raise ValueError(f"{folder} lacks its config, its metrics or its record")
    finished = {row["replica"] for row in record.rows if row["status"] == "finished"}
    rates, score, handles = sorted(metrics["lr"].unique()), record.score, list[Artist]()
    columns = {f"{split}_{score.name}": f"{score.label} on {split}" for split in ("val", "test")}
    columns = {"train_loss": "training loss (nats)", **columns}
    with figure_style():
        sheet = Sheet(None, [""] * len(columns), sharey=False)
        for place, rate in enumerate(rates):
            colour, own = colormaps["viridis"](0.92 * place / max(len(rates) - 1, 1)), metrics[metrics["lr"] == rate]
            for panel, column in zip(sheet.panels, columns, strict=True):
                draw_curves(panel, by_replica(own, column, finished), colour)
            diverged = [row["status"] == "diverged" for row in record.rows if row["lr"] == rate]
            told = f" ({sum(diverged)} of {len(diverged)} diverged)" if any(diverged) else ""
            handles.append(Line2D([], [], color=colour, label=f"lr {short_number(rate)}{told}"))
        for panel, (column, label) in zip(sheet.panels, columns.items(), strict=True):
            panel.set_ylabel(label)
            show_epochs(panel, "token" in metrics)
            if column != "train_loss":
                limit(panel, score)
            elif 0 < len(finished) < len(record.rows):  # so that a rate that diverged does not flatten the others
                panel.set_ylim(top=1.05 * metrics.loc[metrics["replica"].isin(finished), column].max())
        title = setting_title(f"{config['mixer']['name']} on {config['task']['name']}", config["task"]["setting"])
        told = SEEDS if len(record.rows) > len(rates) else ""
        return sheet.finish(title, told, handles, height=1.45)  # at 1.5 some ranges of the loss cut off its label
