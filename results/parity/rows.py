"""Final accuracies of mad-lab and of ours side by side: a row for each cell, rate, weight decay and seed.

    python results/parity/rows.py LIST.csv THEIRS.csv RESULTS OUT.csv

Needs the repository root on PYTHONPATH. THEIRS.csv is from theirs.py; RESULTS is the folder or the archive in which
results/train.py left ours. OUT.csv has the runs that both sides ended. Beside it, a Markdown table has for each cell
the means over seeds, and whether their difference lies within the spread of the seeds: Welch's interval of 95% reaches
0. A difference of at most 0.005 counts as none, since both sides stop above 0.999; where they do, the epoch of the
reported checkpoint tells more. With three seeds this finds only large differences, so the table ends with tests over
all cells that neither side solves, which find smaller ones if they have the same sign.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, variance

import numpy as np
import pandas as pd

import mixerlab
from mixerlab.config.settings import setting_name
from mixerlab.records.edges import NEAR_PERFECT
from mixerlab.sweeps.tables.intervals import STUDENT_T
from mixerlab.sweeps.tables.sources import rows_of

NONE = 0.005
DRAWS = 100_000  # of a permutation test
KEY = ["mixer", "task", "setting", "lr", "weight_decay", "seed"]
OURS = {"official_accuracy": "ours", "official_epoch": "our_epoch", "steps": "our_steps", "wall_time_s": "our_wall_s"}
THEIRS = {"accuracy": "theirs", "best_epoch": "their_epoch", "epochs": "their_epochs", "wall_time_s": "their_wall_s"}


def side_by_side(listed: pd.DataFrame, theirs: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """A row for each run that both sides ended; `wall_s` of ours is that of all its seeds together."""
    # The list names a setting; our rows name what its overrides resolve to.
    labels = {
        (row.task, row.setting): setting_name(mixerlab.compose(*row.overrides.split()).task)
        for row in listed.itertuples()
    }
    theirs = theirs.assign(label=[labels[row.task, row.setting] for row in theirs.itertuples()])
    ours = ours[ours["status"] == "finished"].rename(columns={"setting": "label"} | OURS)
    shared = ["mixer", "task", "label", "lr", "weight_decay", "seed"]
    named = theirs.rename(columns=THEIRS)[[*KEY, "label", *THEIRS.values(), "device"]]
    joined = named.merge(ours[[*shared, *OURS.values(), "precision"]], on=shared, validate="one_to_one")
    return joined.assign(difference=joined["ours"] - joined["theirs"])[
        [
            *KEY,
            "theirs",
            "ours",
            "difference",
            *list(THEIRS.values())[1:],
            *list(OURS.values())[1:],
            "device",
            "precision",
        ]
    ].sort_values(KEY)


def half_width(one: list[float], other: list[float]) -> float | None:
    """Half of Welch's interval of 95% for the difference of two means; None below two seeds on either side."""
    if min(len(one), len(other)) < 2:
        return None
    errors = [variance(values) / len(values) for values in (one, other)]
    if not sum(errors):
        return 0.0
    parts = [error**2 / (len(values) - 1) for error, values in zip(errors, (one, other), strict=True)]
    freedom = max(1, int(sum(errors) ** 2 / sum(parts)))
    return STUDENT_T[min(freedom, len(STUDENT_T)) - 1] * sum(errors) ** 0.5


def is_within(one: list[float], other: list[float]) -> bool | None:
    """Whether the difference of two means may be chance; None below two seeds on either side."""
    half = half_width(one, other)
    return None if half is None else abs(fmean(one) - fmean(other)) <= max(half, NONE)


@dataclass(frozen=True)
class Together:
    """All cells at once: the mean over them of ours minus mad-lab's, and how likely chance makes one as large.

    `scaled` is the mean with each cell's difference in units of the standard deviation of its runs, so that cells
    whose seeds hardly differ count as much as others. Both p are of permutation tests (DRAWS, from a fixed seed) that
    exchange the sides within each cell.
    """

    mean: float
    p_of_mean: float
    scaled: float
    p_of_scaled: float


def together(cells: Sequence[tuple[list[float], list[float]]]) -> Together | None:
    """None if no cell has a spread."""
    draws = np.random.default_rng(0)
    plain, scaled = [], []  # of each cell the difference, and after it what exchanges of its sides give
    for theirs, ours in cells:
        values = np.array([*ours, *theirs])
        if not values.std():
            continue
        exchanged = np.vstack([values, draws.permuted(np.tile(values, (DRAWS, 1)), axis=1)])
        plain.append(exchanged[:, : len(ours)].mean(axis=1) - exchanged[:, len(ours) :].mean(axis=1))
        scaled.append(plain[-1] / values.std(ddof=1))
    if not plain:
        return None
    return Together(*_tested(np.mean(plain, axis=0)), *_tested(np.mean(scaled, axis=0)))


def _tested(means: np.ndarray) -> tuple[float, float]:
    """The first mean, and the share of all, itself among them, that are as far from 0."""
    return float(means[0]), float((np.abs(means) >= abs(means[0]) - 1e-12).mean())


def markdown(rows: pd.DataFrame) -> str:
    lines = [
        "| mixer | task | setting | lr | decay | mad-lab | ours | difference | within the seeds' spread"
        " | best epoch, mad-lab | ours |",
        "|---|---|---|--:|--:|--:|--:|--:|---|--:|--:|",
    ]
    verdicts, unsolved = [], []
    for key, group in rows.groupby(KEY[:-1], sort=False):
        theirs, ours = list(group["theirs"]), list(group["ours"])
        verdicts.append(is_within(theirs, ours))
        if max(fmean(theirs), fmean(ours)) < NEAR_PERFECT:
            unsolved.append((theirs, ours))
        said = {True: "yes", False: "**no**", None: "one seed"}[verdicts[-1]]
        shown = [f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})" for values in (theirs, ours)]
        half = half_width(theirs, ours)
        shown.append(f"{fmean(ours) - fmean(theirs):+.3f}" + ("" if half is None else f" ± {half:.3f}"))
        name = " | ".join(map(str, key))
        epochs = [f"{group[side].min():.0f} to {group[side].max():.0f}" for side in ("their_epoch", "our_epoch")]
        lines.append(f"| {name} | {' | '.join(shown)} | {said} | {' | '.join(epochs)} |")
    judged = [verdict for verdict in verdicts if verdict is not None]
    lines += [
        "",
        f"Within the spread of the seeds: {sum(judged)} of {len(judged)}. In brackets, lowest to highest seed; after ±,"
        " half of Welch's interval of 95%. A difference of at most 0.005 counts as within.",
    ]
    if (all_at_once := together(unsolved)) is not None:
        lines += [
            "",
            f"The {len(unsolved)} cells in which both means are below {NEAR_PERFECT}, taken together: mean difference"
            f" {all_at_once.mean:+.3f}, p = {all_at_once.p_of_mean:.2f}. In units of the standard deviation of each"
            f" cell's runs: {all_at_once.scaled:+.2f}, p = {all_at_once.p_of_scaled:.2f}. (Permutation tests.)",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    listed, theirs, results, out = sys.argv[1:]
    rows = side_by_side(pd.read_csv(listed), pd.read_csv(theirs), rows_of(results))
    rows.to_csv(out, index=False, lineterminator="\n")
    text = markdown(rows)
    Path(out).with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
