"""How certain a mean over seeds is, and how many replicas solved a cell.

Whatever stands after a ± is `half_width`; a bootstrap of two or three seeds would be too narrow. All seeds of a cell
are trained and tested on the same rows (`task.data_seed`), so no interval here has the variation between draws of the
data in it.
"""

import math
from collections.abc import Collection, Iterable
from statistics import fmean, median, variance
from typing import Any

Error = tuple[float, float]  # the squared standard error of a mean, and its degrees of freedom: 0 for one seed

# The 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom; the last serves for all above it.
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def error_of_mean(values: Collection[float]) -> Error:
    """Of the mean of values; (0, 0) below two."""
    return (variance(values) / len(values), len(values) - 1) if len(values) > 1 else (0.0, 0.0)


def error_of_sum(errors: Iterable[Error]) -> Error:
    """Of a sum or difference of independent means, Welch and Satterthwaite's; those without freedom add nothing."""
    known = [(error, freedom) for error, freedom in errors if freedom]
    total = sum(error for error, _ in known)
    below = sum(error**2 / freedom for error, freedom in known)
    return total, total**2 / below if below else sum(freedom for _, freedom in known)


def half_width(*errors: Error) -> float:
    """Half of the 95% interval of a mean, Student's, or of a sum or difference of several, Welch's.

    Degrees of freedom are rounded down, and one at least.
    """
    error, freedom = error_of_sum(errors)
    return STUDENT_T[min(max(int(freedom), 1), len(STUDENT_T)) - 1] * error**0.5


def interval_text(mean: float, *errors: Error, form: str = ".3f") -> str:
    """A mean or difference and, of several seeds, half of its interval: `+0.81 ± 0.03` with the form `+.2f`."""
    half = f" ± {half_width(*errors):{form.lstrip('+')}}" if all(freedom for _, freedom in errors) else ""
    return f"{mean:{form}}{half}"


def mean_text(values: Collection[float], form: str) -> str:
    """`interval_text` of the mean; nothing of no values."""
    return interval_text(fmean(values), error_of_mean(values), form=form) if values else ""


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
