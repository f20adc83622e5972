"""How certain a mean over seeds is, and how many replicas solved a cell.

All seeds of a cell are trained and tested on the same rows (`task.data_seed`), so no interval here has the variation
between draws of the data in it.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from statistics import fmean, median, stdev
from typing import Any

import numpy as np

# The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last serves for all above it.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
EXACT_SEEDS = 5  # up to so many, all resamples are made
RESAMPLES = 10_000


def half_width(values: Sequence[float]) -> float:
    """Half of Student's 95% interval of the mean of at least two values."""
    return STUDENT_T[min(len(values) - 2, len(STUDENT_T) - 1)] * stdev(values) / len(values) ** 0.5


def interval(by_seed: Sequence[float], bounded: bool = True) -> tuple[float, float] | None:
    """Student's 95% interval of a mean over seeds, `bounded`: cut to [0, 1], as of an accuracy; None below two seeds.

    Of two seeds that differ by 0.08 or more it is at least 1 wide before the cut: two say little.
    """
    if len(by_seed) < 2:
        return None
    mean, half = fmean(by_seed), half_width(by_seed)
    return (max(0.0, mean - half), min(1.0, mean + half)) if bounded else (mean - half, mean + half)


def bootstrap(by_seed: Sequence[float], share: float = 0.95) -> tuple[float, float] | None:
    """The percentile bootstrap interval of the mean over seeds; None below two.

    That of two or three seeds is their range. It is too narrow for few seeds: of normal values, what is called 95%
    covers the mean in 50 % of cases with two seeds, 75 % with three, 84 % with five and 90 % with nine. Only shares of
    solved runs have it: they are whole numbers of runs, far from Student's assumptions. Means have `interval`.
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


def solved_counts(steps: Iterable[tuple[int, float]]) -> dict[str, Any]:
    """`known`, `solved`, `solved_by_seed` (shares) and `steps_to_90` of a cell from the (seed, steps) of its replicas.

    A replica that never solved the cell counts as infinitely late: the median over those that did would be the smaller,
    the fewer did. So `steps_to_90` is None unless more than half of the replicas solved it.
    """
    by_seed: dict[int, list[float]] = {}
    for seed, value in steps:
        if not math.isnan(value):
            by_seed.setdefault(seed, []).append(value)
    known = [value for own in by_seed.values() for value in own]
    middle = median(known) if known else math.inf
    return {
        "known": len(known),
        "solved": sum(map(math.isfinite, known)),
        "solved_by_seed": {seed: fmean(map(math.isfinite, by_seed[seed])) for seed in sorted(by_seed)},
        "steps_to_90": middle if math.isfinite(middle) else None,
    }
