"""Parallax trained with its kernel and with the PyTorch reference, from the same seed, side by side.

    python -m benchmarks.parallax_training [results_dir] [--out DIR]

Trains `mixer=parallax task=icr` twice through `run.py` (what is finished in `results_dir` is not repeated) and
writes `curves.csv` and `curves.png`: training loss and test accuracy by epoch, for each learning rate.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from sweeps.record import METRICS_FILE, read_record

ROOT = Path(__file__).parent.parent
BACKENDS = ("reference", "triton")


def train(backend: str, results_dir: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py"), "mixer=parallax", "task=icr", f"mixer.backend={backend}"]
    subprocess.run([*command, f"results_dir={results_dir}"], check=True)


def metrics_of(backend: str, results_dir: Path) -> pd.DataFrame:
    for folder in results_dir.glob("runs/*/"):
        config = OmegaConf.load(folder / "config.yaml")
        if config.mixer.name == "parallax" and config.mixer.backend == backend and read_record(folder):
            return pd.read_csv(folder / METRICS_FILE).assign(backend=backend)
    raise ValueError(f"no finished run of mixer=parallax mixer.backend={backend} in {results_dir}")


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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallax_training", description=__doc__.splitlines()[0])
    parser.add_argument("results_dir", nargs="?", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/parallax_training"))
    given = parser.parse_args()
    for backend in BACKENDS:
        train(backend, given.results_dir)
    curves = pd.concat([metrics_of(backend, given.results_dir) for backend in BACKENDS], ignore_index=True)
    given.out.mkdir(parents=True, exist_ok=True)
    curves.to_csv(given.out / "curves.csv", index=False)
    draw(curves).savefig(given.out / "curves.png", dpi=150)
    last = curves[curves["epoch"] == curves.groupby(["backend", "lr"])["epoch"].transform("max")]
    print(last[["backend", "lr", "epoch", "train_loss", "test_accuracy"]].to_string(index=False))


if __name__ == "__main__":
    main()
