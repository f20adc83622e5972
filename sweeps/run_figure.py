"""The figure of a single run: what each replica's loss and accuracy did."""

from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sweeps.record import METRICS_FILE


def run_curves(folder: Path) -> Figure:
    """Training loss (nats) and accuracy on val and test by epoch, a colour per learning rate.

    Several seeds of a learning rate are drawn as their mean and range.
    """
    metrics = pd.read_csv(folder / METRICS_FILE)
    rates = sorted(metrics["lr"].unique())
    colours = dict(zip(rates, sns.color_palette("colorblind", len(rates)), strict=True))
    panels = (
        ("train_loss", "training loss (nats)"),
        ("val_accuracy", "accuracy on val"),
        ("test_accuracy", "accuracy on test"),
    )
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(9, 3), layout="constrained")
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
        ax.set(xlabel="epoch", ylabel=label)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        if column != "train_loss":
            ax.set_ylim(-0.04, 1.04)
    axes[-1].legend(title="learning rate", loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure
