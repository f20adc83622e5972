"""How many replicas solved a cell, how fast, and how certain the mean over seeds is.

Recall is learned in a jump: what a fixed budget shows is whether the jump came. A replica has one learning rate and one
seed.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from statistics import fmean, median
from typing import Any

import pandas as pd

from mixerlab.records.names import MIXERS, in_order
from mixerlab.records.text import escape_markdown
from mixerlab.sweeps.tables.intervals import bootstrap, interval

SOLVED = 0.9  # test accuracy, as in `training.metrics`, which `sweeps` cannot import


def known_steps(row: Mapping[str, Any]) -> float:
    """A record's `steps_to_90`: steps by the end of the first epoch with a test accuracy of at least `SOLVED`.

    It is inf for a replica that never got there, and NaN if the record is older than this column.
    """
    if "steps_to_90" not in row:
        return math.nan
    return math.inf if row["steps_to_90"] is None else float(row["steps_to_90"])


def steps_in(metrics: pd.DataFrame, replicas: Iterable[int]) -> dict[int, float]:
    """The same by replica from a run's `metrics.csv`, which older records have too; NaN if it does not count steps."""
    if "step" not in metrics:
        return dict.fromkeys(replicas, math.nan)
    reached = metrics.loc[metrics["test_accuracy"] >= SOLVED, ["replica", "step"]].drop_duplicates("replica")
    first = dict(zip(reached["replica"], reached["step"], strict=True))
    return {replica: float(first.get(replica, math.inf)) for replica in replicas}


def _text(cell: Any) -> str:
    """`5/6, 1,200`: solved of all replicas with known steps, and their median steps; `2/6, -` where it has none."""
    if not cell.known:
        return "-"
    has_median = 2 * cell.solved > cell.known
    return f"{cell.solved}/{cell.known}, {f'{cell.steps_to_90:,.0f}' if has_median else '-'}"


def solved_markdown(cells: pd.DataFrame) -> str:
    """(task, setting) x mixers: the share of (rate, seed) that solved the cell, and the median steps (`counts`)."""
    mixers = in_order(cells["mixer"], MIXERS)
    lines = [
        f"Replicas (learning rate, seed) that reached a test accuracy of {SOLVED}, and the median over all of them of",
        "the steps to it, counted to the end of the first such epoch. A replica that never reached it counts as",
        "infinitely late, so there is a median only where more than half did.",
        "",
        f"| task | setting | {' | '.join(map(escape_markdown, mixers))} |",
        f"|---|---|{'---|' * len(mixers)}",
    ]
    for (task, setting), group in cells.groupby(["task", "setting"], sort=False):
        texts = {cell.mixer: _text(cell) for cell in group.itertuples()}
        names = map(escape_markdown, (task, setting))
        lines.append(f"| {' | '.join([*names, *(texts[mixer] for mixer in mixers)])} |")
    return "\n".join(lines) + "\n"


def solved_csv(cells: pd.DataFrame) -> str:
    """A row for each cell.

    `solved` of `known` replicas, the bootstrap interval of that share over seeds (`share_low`, `share_high`),
    `steps_to_90` (median, empty where no more than half solved it), the mean accuracy over `n` seeds and its interval
    (Student's, `low`, `high`). An interval is empty below two seeds.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = ["task", "setting", "mixer", "solved", "known", "share_low", "share_high", "steps_to_90"]
    writer.writerow([*columns, "accuracy", "n", "low", "high"])
    for cell in cells.itertuples():
        low, high = interval(list(cell.by_seed.values())) or ("", "")
        share_low, share_high = bootstrap(list(cell.solved_by_seed.values())) or ("", "")
        steps = cell.steps_to_90 if 2 * cell.solved > cell.known else ""
        accuracy = cell.accuracy if cell.n else ""
        row = [cell.task, cell.setting, cell.mixer, cell.solved, cell.known, share_low, share_high, steps]
        writer.writerow([*row, accuracy, cell.n, low, high])
    return file.getvalue()


def counts(steps: Iterable[tuple[int, float]]) -> dict[str, Any]:
    """`known`, `solved`, `solved_by_seed` (shares) and `steps_to_90` of a cell from the (seed, steps) of its replicas.

    A replica that never solved the cell counts as infinitely late: the median over those that did would be the smaller,
    the fewer did. So `steps_to_90` is None unless more than half of the replicas solved it.
    """
    by_seed: dict[int, list[float]] = {}
    for seed, value in steps:
        if not math.isnan(value):
            by_seed.setdefault(seed, []).append(value)
    known = [value for of_seed in by_seed.values() for value in of_seed]
    middle = median(known) if known else math.inf
    return {
        "known": len(known),
        "solved": sum(map(math.isfinite, known)),
        "solved_by_seed": {seed: fmean(map(math.isfinite, by_seed[seed])) for seed in sorted(by_seed)},
        "steps_to_90": middle if math.isfinite(middle) else None,
    }
