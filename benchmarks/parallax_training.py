"""Trains Parallax with its kernel and with the PyTorch reference, from the same seed, and compares the curves.

    python -m mixerlab.benchmarks.parallax_training [--out DIR]

Trains `mixer=parallax task=icr` twice with the command `mixerlab`, in temporary folders, and writes `curves.csv` and
`curves.png`: training loss and test accuracy by epoch, for each learning rate.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure

from mixerlab.records.files import METRICS_FILE

BACKENDS = ("reference", "triton")


def train(backend: str) -> pd.DataFrame:
    """Trains in a temporary folder and returns the metrics. In the user's results, the run would be in every report."""
    command = [sys.executable, "-m", "mixerlab", "mixer=parallax", "task=icr", f"mixer.backend={backend}"]
    with tempfile.TemporaryDirectory() as results_dir:
        subprocess.run([*command, f"results_dir={results_dir}"], check=True)
        (path,) = Path(results_dir).glob(f"runs/*/{METRICS_FILE}")
        return pd.read_csv(path).assign(backend=backend)


def draw(curves: pd.DataFrame) -> Figure:
    rates = sorted(curves["lr"].unique())
    with sns.axes_style("whitegrid"):
        figure = Figure(figsize=(3.1 * len(rates) + 1, 5), layout="constrained")
        axes = figure.subplots(2, len(rates), sharex=True, sharey="row")
    losses, accuracies = axes
    for row, column, label in (
        (losses, "train_loss", "training loss (nats)"),
        (accuracies, "test_accuracy", "accuracy on test"),
    ):
        for axis, rate in zip(row, rates, strict=True):
            sns.lineplot(
                curves[curves["lr"] == rate],
                x="epoch",
                y=column,
                hue="backend",
                style="backend",
                hue_order=BACKENDS,
                palette="colorblind",
                legend=axis is losses[-1],
                ax=axis,
            )
            axis.set(xlabel="epoch", ylabel=label)
            if row is losses:
                axis.set_title(f"learning rate {rate:g}")
    losses[-1].legend(title="backend", loc="center left", bbox_to_anchor=(1.02, 0.5))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.benchmarks.parallax_training", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/parallax_training"))
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    curves = pd.concat([train(backend) for backend in BACKENDS], ignore_index=True)
    given.out.mkdir(parents=True, exist_ok=True)
    curves.to_csv(given.out / "curves.csv", index=False)
    draw(curves).savefig(given.out / "curves.png", dpi=150)
    last = curves[curves["epoch"] == curves.groupby(["backend", "lr"])["epoch"].transform("max")]
    print(last[["backend", "lr", "epoch", "train_loss", "test_accuracy"]].to_string(index=False))


if __name__ == "__main__":
    main()
