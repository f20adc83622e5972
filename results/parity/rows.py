"""Final accuracies of mad-lab and of ours side by side: a row for each cell, rate, weight decay and seed.

    python results/parity/rows.py LIST.csv THEIRS.csv RESULTS OUT.csv

Needs the repository root on PYTHONPATH. THEIRS.csv is from theirs.py; RESULTS is the folder or the archive in which
results/train.py left ours. OUT.csv has the runs that both sides ended. Beside it, a Markdown table has for each cell
the means over seeds, and whether their difference lies within the spread of the seeds: Welch's interval of 95 % reaches
0. A difference of at most 0.005 counts as none, since both sides stop above 0.999; where they do, the epoch of the
reported checkpoint tells more. With three seeds this finds only large differences, so the table ends with one test over
all cells that neither side solves, which finds smaller ones if they have the same sign.
"""

import sys
from collections.abc import Sequence
from math import erfc
from pathlib import Path
from statistics import fmean, variance

import pandas as pd

import mixerlab
from mixerlab.sweeps.edges import NEAR_PERFECT
from mixerlab.sweeps.sources import rows_of
from mixerlab.sweeps.tables import STUDENT_T
from mixerlab.tasks.settings import setting_name

NONE = 0.005
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


def is_within(one: list[float], other: list[float]) -> bool | None:
    """Whether the difference of two means may be chance; None below two seeds on either side."""
    if min(len(one), len(other)) < 2:
        return None
    difference = abs(fmean(one) - fmean(other))
    errors = [variance(values) / len(values) for values in (one, other)]
    if difference <= NONE or not sum(errors):
        return difference <= NONE
    parts = [error**2 / (len(values) - 1) for error, values in zip(errors, (one, other), strict=True)]
    freedom = max(1, int(sum(errors) ** 2 / sum(parts)))
    return difference <= STUDENT_T[min(freedom, len(STUDENT_T)) - 1] * sum(errors) ** 0.5


def together(cells: Sequence[tuple[list[float], list[float]]]) -> float | None:
    """The p of the hypothesis that in no cell does it matter which side trained a run; None without a cell.

    A permutation test that exchanges the sides within each cell. Each difference of means is divided by its standard
    deviation over the permutations, and the sum over cells is taken as normal, as it nearly is with ten cells.
    """
    scores = []
    for theirs, ours in cells:
        spread = variance([*theirs, *ours]) * (1 / len(theirs) + 1 / len(ours))
        if spread:
            scores.append((fmean(ours) - fmean(theirs)) / spread**0.5)
    return erfc(abs(sum(scores)) / (2 * len(scores)) ** 0.5) if scores else None


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
        name = " | ".join(map(str, key))
        epochs = [f"{group[side].min():.0f} to {group[side].max():.0f}" for side in ("their_epoch", "our_epoch")]
        lines.append(
            f"| {name} | {' | '.join(shown)} | {fmean(ours) - fmean(theirs):+.3f} | {said} | {' | '.join(epochs)} |"
        )
    judged = [verdict for verdict in verdicts if verdict is not None]
    lines += [
        "",
        f"Within the spread of the seeds: {sum(judged)} of {len(judged)}. In brackets, lowest to highest seed.",
    ]
    if (p := together(unsolved)) is not None:
        mean = fmean(fmean(ours) - fmean(theirs) for theirs, ours in unsolved)
        lines += [
            "",
            f"The {len(unsolved)} cells in which both means are below {NEAR_PERFECT}, taken together: mean difference"
            f" {mean:+.3f}, p = {p:.2f} (permutation test over the sides).",
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
