"""The numbers that README.md quotes, from the records: token accuracies of the clean selection, by length and rate.

    python results/frontier/accuracies.py results/frontier/frontier.tar.xz results/frontier/accuracies.md

Needs the repository root on PYTHONPATH. The clean selection chooses epoch and learning rate on validation rows, which
have the length of training.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd

from mixerlab.records.files import METRICS_FILE, run_folder
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.intervals import STUDENT_T
from mixerlab.sweeps.tables.sources import unpacked

TRAINED, LENGTHS = 128, (128, 256, 512)
SEEN = "clean_token_accuracy"


def beyond(trained: float, longer: float, length: int) -> float:
    """The accuracy of the positions after the first `TRAINED` ones, from those of rows of `TRAINED` and of `length`.

    Exact if the first positions of long rows are as accurate as those of short ones, as in a causal model and a task
    whose rows differ in nothing but their length.
    """
    return (length * longer - TRAINED * trained) / (length - TRAINED)


def above_chance(accuracy: float, chance: float) -> float:
    """How many of the first `TRAINED` positions a model must know, and guess the others, to reach an accuracy."""
    return TRAINED * (accuracy - chance) / (1 - chance)


def with_interval(values: Sequence[float], digits: int = 3) -> str:
    """The mean over seeds, and half of its interval (Student's, 95%)."""
    half = STUDENT_T[len(values) - 2] * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):.{digits}f} ± {half:.{digits}f}"


def with_lowest(values: Iterable[float]) -> str:
    values = list(values)
    return f"{fmean(values):.3f} ({min(values):.3f})"


def setting_of(origin: str, length: int) -> str:
    return origin if length == TRAINED else f"{origin},test_seq_len={length}"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    line = "| {} |".format
    return [line(" | ".join(row)) for row in (header, ["---"] * 2 + ["--:"] * (len(header) - 2), *rows)] + [""]


class Records:
    """Rows by replica, and those that the clean selection takes of a cell, by seed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.frame = collect(folder)
        self.by_replica = self.frame.set_index(["run_id", "replica"])
        cells = best_per_cell(self.frame, "clean")
        self.cells = {(cell.mixer, cell.task, cell.setting): cell.replicas for cell in cells.itertuples()}
        self.mixers = list(dict.fromkeys(cells["mixer"]))

    def chosen(self, mixer: str, task: str, setting: str) -> pd.DataFrame:
        return self.by_replica.loc[list(self.cells[mixer, task, setting])].sort_values("seed")

    def at_rate(self, mixer: str, task: str, setting: str, rate: float) -> pd.DataFrame:
        rows = self.by_replica
        here = (rows["mixer"] == mixer) & (rows["task"] == task) & (rows["setting"] == setting)
        return rows[here & (rows["lr"] == rate)].sort_values("seed")

    def validation(self, rows: pd.DataFrame) -> list[float]:
        """The token accuracy on validation rows at the chosen epoch, by seed."""
        found = []
        for (run_id, replica), row in rows.iterrows():
            metrics = pd.read_csv(run_folder(self.folder, run_id) / METRICS_FILE)
            at = (metrics["replica"] == replica) & (metrics["epoch"] == row["clean_epoch"])
            found.append(float(metrics.loc[at, "val_token_accuracy"].item()))
        return found


def state_tracking(records: Records) -> Iterator[str]:
    yield "## state_tracking, S3, trained at 128\n"
    yield "Mean over three seeds and its interval (Student's, 95%). `129-512`: only the positions beyond training."
    yield "`known`: how many positions of 128 a model must know, and guess the others, to have its accuracy at 128.\n"
    table = []
    for mixer in records.mixers:
        by_length = [records.chosen(mixer, "state_tracking", setting_of("S3-128", length)) for length in LENGTHS]
        # The three runs are one training: only their test rows differ.
        assert all(list(rows["clean_val_loss"]) == list(by_length[0]["clean_val_loss"]) for rows in by_length)
        scores = [list(rows[SEEN]) for rows in by_length]
        after = [beyond(short, long, 512) for short, long in zip(scores[0], scores[2], strict=True)]
        known = [above_chance(score, by_length[0]["chance"].iloc[0]) for score in scores[0]]
        rate = f"{by_length[0]['lr'].iloc[0]:g}"
        table.append([mixer, rate, *map(with_interval, [*scores, after]), with_interval(known, 1)])
    yield from markdown(["mixer", "rate", "128", "256", "512", "129-512", "known"], table)


def mqar(records: Records) -> Iterator[str]:
    yield "## mqar, 8 pairs, trained at 128\n"
    yield "Token accuracy of each seed, at 128 on validation rows; bold the rate that validation chooses.\n"
    frame = records.frame
    rates = sorted(frame.loc[frame["task"] == "mqar", "lr"].unique())
    table = []
    for mixer in records.mixers:
        for rate in rates:
            scores = []
            for length in LENGTHS[1:]:
                setting = setting_of("8-128", length)
                chosen = records.chosen(mixer, "mqar", setting)["lr"].iloc[0]
                rows = records.at_rate(mixer, "mqar", setting, rate)
                if length == LENGTHS[1]:  # another length repeats the same training
                    scores.append(records.validation(rows))
                scores.append(list(rows[SEEN]))
            shown = f"**{rate:g}**" if rate == chosen else f"{rate:g}"
            size = f"{rows['state_size'].iloc[0]:,}"
            table.append([mixer, shown, size, *(", ".join(f"{x:.3f}" for x in of) for of in scores)])
    yield from markdown(["mixer", "rate", "state size", "128 (validation)", "256", "512"], table)


def recall(records: Records) -> Iterator[str]:
    rates = sorted(records.frame.loc[records.frame["task"] == "icr", "lr"].unique())
    yield "## icr and ncr, trained at 128: each learning rate\n"
    yield "Mean over three seeds of the token accuracy, in brackets the lowest seed; bold the rate that validation"
    yield "chooses; * its validation accuracy (token, at 128) is below 0.9995.\n"
    table = []
    for task in ("icr", "ncr"):
        for mixer in records.mixers:
            entries = []
            for length in LENGTHS[1:]:
                setting = setting_of("num_train_examples=100000", length)
                best = records.chosen(mixer, task, setting)["lr"].iloc[0]
                for rate in rates:
                    rows = records.at_rate(mixer, task, setting, rate)
                    text = with_lowest(rows[SEEN]) + ("*" if min(records.validation(rows)) < 0.9995 else "")
                    entries.append(f"**{text}**" if rate == best else text)
            table.append([task, mixer, *entries])
    header = [f"{length}, rate {rate:g}" for length in LENGTHS[1:] for rate in rates]
    yield from markdown(["task", "mixer", *header], table)


def two_accuracies(records: Records) -> Iterator[str]:
    yield "## icr and ncr at 512: MAD's accuracy beside token accuracy\n"
    yield "Of each seed, at the chosen rate. The first, of the tables, is a mean over classes and batches.\n"
    table = []
    for task in ("icr", "ncr"):
        for mixer in records.mixers:
            rows = records.chosen(mixer, task, setting_of("num_train_examples=100000", 512))
            scores = (", ".join(f"{x:.4f}" for x in rows[name]) for name in ("clean_accuracy", SEEN))
            table.append([task, mixer, *scores])
    yield from markdown(["task", "mixer", "MAD's", "token"], table)


def stopped(records: Records) -> Iterator[str]:
    yield "## Replicas that stopped before their last epoch\n"
    yield "Perfect on validation and on the test rows of this length at one epoch (`trainer.stop_when_perfect`).\n"
    frame = records.frame
    steps = -(-frame["task.num_train_examples"].astype(int) // frame["batch_size"]) * frame["epochs"]
    early = frame["steps"] < steps
    table = []
    for task in ("icr", "ncr", "mqar", "state_tracking"):
        row = [task, "all"]
        for length in LENGTHS:
            of = (frame["task"] == task) & (frame["task.test_seq_len"].fillna(TRAINED).astype(int) == length)
            row.append(f"{early[of].sum()} of {of.sum()}")
        table.append(row)
    yield from markdown(["task", "mixers", *map(str, LENGTHS)], table)


def main(source: str, out: str) -> None:
    with unpacked(source) as folder:
        records = Records(folder)
        lines = ["# Token accuracies, clean selection\n", "Written by `accuracies.py` from the records.\n"]
        for section in (state_tracking, mqar, recall, two_accuracies, stopped):
            lines += section(records)
    Path(out).write_text("\n".join(lines).rstrip("\n") + "\n")
    print(Path(out).read_text(), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
