"""The figure of a single run: what each replica's loss and accuracy did."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mixerlab.records.files import (
    CONFIG_FILE,
    DRAWN,
    METRICS_FILE,
    RECORD_FILE,
    read_config,
    read_metrics,
    read_record,
)
from mixerlab.sweeps.figures.canvas import NO_MATHTEXT
from mixerlab.sweeps.figures.curves import carried_forward


def run_curves(folder: Path) -> Figure:
    """Training loss (nats) and accuracy on val and test by epoch, a colour per learning rate.

    Several seeds of a learning rate are drawn as their mean and range, what ended after one epoch as a point. A seed
    that was frozen counts with its last values until the last seed ends; one that diverged counts until it did.

    Raises:
        ValueError: a file that is missing or damaged; says which.
    """
    config, metrics, record = read_config(folder), read_metrics(folder), read_record(folder)
    if config is None or metrics is None or record is None:
        lacking = CONFIG_FILE if config is None else METRICS_FILE if metrics is None else RECORD_FILE
        raise ValueError(f"{folder} has no {lacking}")
    metrics = _to_the_end(metrics, {row["replica"] for row in record.rows if row["status"] == "finished"})
    metrics["epoch"] += 1  # files count from 0, figures and progress from 1
    rates = sorted(metrics["lr"].unique())
    colours = dict(zip(rates, sns.color_palette("colorblind", len(rates)), strict=True))
    panels = (
        ("train_loss", "training loss (nats)"),
        ("val_accuracy", "accuracy on val"),
        ("test_accuracy", "accuracy on test"),
    )
    names = (config[group]["name"] for group in ("mixer", "task"))
    with rc_context({**sns.axes_style("whitegrid"), **NO_MATHTEXT}):
        figure = Figure(figsize=(9, 3), layout="constrained")
        title = f"{' on '.join(names)}, {config['task']['setting'].replace(',', ', ')}"
        figure.suptitle(fill(title, 100, break_on_hyphens=False), fontsize=11)
        axes = figure.subplots(1, len(panels))
    for ax, (column, label) in zip(axes, panels, strict=True):
        sns.lineplot(
            metrics,
            x="epoch",
            y=column,
            hue="lr",
            palette=colours,
            errorbar=("pi", 100),
            legend=ax is axes[-1],
            ax=ax,
        )
        for line in ax.lines:
            if len(line.get_xdata()) == 1:
                line.set_marker("o")
        ax.set(xlabel="epoch", ylabel=label)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        if column != "train_loss":
            ax.set_ylim(-0.04, 1.04)
    _show_legend(axes[-1], record.rows)
    return figure


def _show_legend(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Beside the panel; it says which learning rates diverged, since a replica that did may have no curve."""
    handles, labels = ax.get_legend_handles_labels()
    for number, label in enumerate(labels):
        diverged = [row["status"] == "diverged" for row in rows if row["lr"] == float(label)]
        if any(diverged):
            labels[number] += " (diverged)" if all(diverged) else f" ({sum(diverged)} of {len(diverged)} diverged)"
    ax.legend(handles, labels, title="learning rate", loc="center left", bbox_to_anchor=(1.02, 0.5))


def _to_the_end(metrics: pd.DataFrame, finished: Collection[int]) -> pd.DataFrame:
    """The drawn columns, with each finished replica carried forward to the last epoch of its learning rate."""
    curves = []
    for _, of_rate in metrics.groupby("lr"):
        epochs = np.unique(of_rate["epoch"])
        for replica, own in of_rate.groupby("replica"):
            curve = {name: own[name].to_numpy() for name in DRAWN}
            curves.append(pd.DataFrame(carried_forward(curve, epochs) if replica in finished else curve))
    return pd.concat(curves, ignore_index=True)
