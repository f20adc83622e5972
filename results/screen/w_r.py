"""What W_R does in Parallax, started at zero (the default) or random, at both levels of the screen's factors A and F.

    python results/screen/w_r.py ROWS.csv ... OUT.md

Needs the repository root on PYTHONPATH. Each ROWS.csv has runs of `../plan.py w_r` (../rows.py). What is compared
is the test accuracy at the best learning rate of each side, chosen as in the screen, on the seeds that both have.
"""

import sys
from pathlib import Path
from statistics import fmean

import pandas as pd

from mixerlab.sweeps.tables.intervals import half_width

CELL = ["task", "setting", "A", "F", "device"]
HEAD = (
    "| task | setting | linear weights | norms on q, k, rho | W_R at zero | random | random - zero (95%) | seeds"
    " | device |"
)
A, F = {1: "N(0, 0.02)", -1: "PyTorch's"}, {1: "yes", -1: "no"}


def by_seed(rows: pd.DataFrame) -> dict[int, float]:
    """The accuracy of each seed at the rate with the highest mean; of equal ones the highest rate."""
    means = rows.groupby("lr")["official_accuracy"].mean()
    best = rows[rows["lr"] == means[means == means.max()].index.max()]
    return dict(zip(best["seed"].tolist(), best["official_accuracy"].tolist(), strict=True))


def differences(rows: pd.DataFrame) -> list[dict]:
    """By cell, for those that have both sides: accuracy by seed with W_R at `zero` and `random`."""
    # A recipe is named by the factors at their upper level.
    rows = rows.assign(**{factor: [1 if factor in name else -1 for name in rows["recipe"]] for factor in "AEF"})
    found = []
    for key, group in rows[rows["status"] == "finished"].groupby(CELL, sort=False):
        sides = {name: by_seed(group[group["E"] == level]) for name, level in (("zero", -1), ("random", 1))}
        shared = sorted(sides["zero"].keys() & sides["random"].keys())
        if shared:
            scores = {name: [side[seed] for seed in shared] for name, side in sides.items()}
            found.append(dict(zip(CELL, key, strict=True)) | scores)
    return found


def report(rows: pd.DataFrame) -> str:
    lines = [HEAD, "|---|---|---|---|--:|--:|--:|--:|---|"]
    for cell in differences(rows):
        apart = [random - zero for zero, random in zip(cell["zero"], cell["random"], strict=True)]
        half = f" ± {half_width(apart):.3f}" if len(apart) > 1 else ""
        lines.append(
            f"| {cell['task']} | {cell['setting']} | {A[cell['A']]} | {F[cell['F']]} | {fmean(cell['zero']):.3f}"
            f" | {fmean(cell['random']):.3f} | {fmean(apart):+.3f}{half} | {len(apart)} | {cell['device']} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    *sources, out = sys.argv[1:]
    Path(out).write_text(report(pd.concat([pd.read_csv(source) for source in sources])))
