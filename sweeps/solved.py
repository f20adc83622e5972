"""How many runs solved a cell, how fast, and how certain the mean over seeds is.

Recall is learned in a jump: what a fixed budget shows is whether the jump came. A run is a learning rate and a seed.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from mixerlab.sweeps.markup import escape_markdown
from mixerlab.sweeps.names import MIXERS, in_order

SOLVED = 0.9  # test accuracy
EXACT_SEEDS = 5  # up to so many, all resamples are made
RESAMPLES = 10_000


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


def interval(by_seed: Sequence[float], share: float = 0.95) -> tuple[float, float] | None:
    """The percentile bootstrap interval of the mean over seeds; None below two.

    That of two or three seeds is their range.
    """
    values = np.asarray(by_seed, float)
    n = len(values)
    if n < 2:
        return None
    if n <= EXACT_SEEDS:
        means = values[_all_resamples(n)].mean(axis=1)
    else:
        means = values[np.random.default_rng(0).integers(n, size=(RESAMPLES, n))].mean(axis=1)
    low, high = np.quantile(means, ((1 - share) / 2, (1 + share) / 2), method="inverted_cdf")
    return float(low), float(high)


@lru_cache
def _all_resamples(n: int) -> np.ndarray:
    """Each way to draw n of n with replacement: int `[n ** n, n]`."""
    return np.array(list(product(range(n), repeat=n)))


def _text(cell: Any) -> str:
    """`5/6, 1,200`: solved of all runs whose steps are known, and the median steps of those that were."""
    if not cell.known:
        return "-"
    text = f"{cell.solved}/{cell.known}"
    return f"{text}, {cell.steps_to_90:,.0f}" if cell.solved else text


def solved_markdown(cells: pd.DataFrame) -> str:
    """(task, setting) x mixers: the share of (rate, seed) that solved the cell, and the median steps to it."""
    mixers = in_order(cells["mixer"], MIXERS)
    lines = [
        f"Runs (learning rate, seed) that reached a test accuracy of {SOLVED}, and the median of the steps to it,",
        "counted to the end of the first such epoch.",
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
    """A row for each cell: `solved` of `known` runs, `steps_to_90` (median), the mean's interval over seeds."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["task", "setting", "mixer", "solved", "known", "steps_to_90", "accuracy", "n", "low", "high"])
    for cell in cells.itertuples():
        low, high = interval(list(cell.by_seed.values())) or ("", "")
        steps = cell.steps_to_90 if cell.solved else ""
        accuracy = cell.accuracy if cell.n else ""
        row = [cell.task, cell.setting, cell.mixer, cell.solved, cell.known, steps, accuracy, cell.n, low, high]
        writer.writerow(row)
    return file.getvalue()


def counts(steps: Sequence[float]) -> dict[str, float | int | None]:
    """`known`, `solved` and `steps_to_90` of a cell from the steps of its runs."""
    known = [value for value in steps if not math.isnan(value)]
    reached = [value for value in known if math.isfinite(value)]
    return {"known": len(known), "solved": len(reached), "steps_to_90": median(reached) if reached else None}
