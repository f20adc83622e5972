"""How certain a mean over seeds is, and how many replicas solved a cell.

All seeds of a cell are trained and tested on the same rows (`task.data_seed`), so no interval here has the variation
between draws of the data in it.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median, stdev
from typing import Any

# The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last serves for all above it.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def student_t(freedom: float) -> float:
    """The 97.5 % quantile of Student's t for these degrees of freedom, rounded down, one at least."""
    return STUDENT_T[min(max(int(freedom), 1), len(STUDENT_T)) - 1]


def half_width(values: Sequence[float]) -> float:
    """Half of Student's 95% interval of the mean of at least two values."""
    return student_t(len(values) - 1) * stdev(values) / len(values) ** 0.5


def mean_text(values: Sequence[float], form: str) -> str:
    """The mean and, of several values, half of its interval: `+0.81 ± 0.03` with the form `+.2f`; nothing of none."""
    if not values:
        return ""
    return f"{fmean(values):{form}}" + (f" ± {half_width(values):{form.lstrip('+')}}" if len(values) > 1 else "")


def error_of_sum(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The squared standard error of a sum of independent means, and its degrees of freedom, from those of each.

    Welch and Satterthwaite's. Parts without an error add nothing; (0, 0) if none has one.
    """
    parts = [(error, freedom) for error, freedom in parts if error]
    total = sum(error for error, _ in parts)
    return total, total**2 / sum(error**2 / freedom for error, freedom in parts) if parts else 0.0


def solved_counts(steps: Iterable[float]) -> dict[str, Any]:
    """`known`, `solved` and `steps_to_90` of a cell from the steps of its replicas; NaN: not known, inf: never solved.

    A replica that never solved the cell counts as infinitely late: the median over those that did would be the smaller,
    the fewer did. So `steps_to_90` is None unless more than half of the replicas solved it.
    """
    known = [value for value in steps if not math.isnan(value)]
    solved = sum(map(math.isfinite, known))
    return {
        "known": len(known),
        "solved": solved,
        "steps_to_90": median(known) if 2 * solved > len(known) else None,
    }
