"""The MAD table, its figures, and the published tables beside it."""

import math
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from makers.common import EARLIER, RECORDS, copy_report, write_in_page

from mixerlab.records.best import Selection
from mixerlab.records.names import AVERAGE
from mixerlab.records.schema import LABELS
from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.intervals import Error, error_of_sum, interval_text
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.tables import task_table
from mixerlab.sweeps.tables.writers import rows_csv

# Columns of table/rows.csv; a report of the archive has all hyperparameters and the whole provenance.
COLUMNS = [
    *(*LABELS, "status", "error", "score", "higher_is_better", "config", "num_params", "state_size", "chance"),
    *("steps", "steps_to_90", "official_accuracy", "official_epoch", "official_token_accuracy"),
    *("clean_accuracy", "clean_epoch", "clean_val_accuracy", "test_accuracy"),
    *("device", "git_commit", "wall_time_s"),
]

RECURRENT = ("gdn", "mamba", "mesa")
PAIRS = [*(("parallax", other) for other in ("attn", *RECURRENT)), *combinations(RECURRENT, 2)]


def make(folder: Path, scratch: Path) -> None:
    rows = rows_of(folder / RECORDS)[COLUMNS].sort_values("run_id", kind="stable")
    (folder / "rows.csv").write_text(rows_csv(rows.assign(git_commit=rows["git_commit"].str[:7])))
    files = ["official/solved.md", *(f"official/{name}.png" for name in ("accuracy", "difficulty", "learning_rates"))]
    files += [f"{selection}/{name}.md" for selection in ("official", "clean") for name in ("accuracy", "settings")]
    copy_report(folder, files, scratch)
    frame = spread_out(rows)
    test, validation = (means_of(frame, selection) for selection in ("official", "clean"))
    earlier = means_of(spread_out(rows_of(folder / EARLIER)), "official")
    write_in_page(folder, "means", means_table(test, validation, earlier))
    write_in_page(folder, "lead", lead_table(test))
    sources, labels = [scratch / "report" / "rows.csv", folder / EARLIER], ["default rates", "the paper's rates"]
    compare(sources, scratch / "beside", labels=labels, rules=("official", "last"))
    shutil.copyfile(scratch / "beside" / "published.md", folder / "beside_published.md")
    shutil.copyfile(scratch / "beside" / "means.png", folder / "beside_published.png")


def means_of(frame: pd.DataFrame, selection: Selection) -> pd.DataFrame:
    """The report's means over settings, entries by task and mixer."""
    return task_table(best_per_cell(frame, selection)).frame.rename(columns=lambda column: column.mixer)


def means_table(test: pd.DataFrame, validation: pd.DataFrame, earlier: pd.DataFrame) -> pd.DataFrame:
    """The means of accuracy and their intervals, chosen on test and, in brackets, the means on validation.

    Below them those of all tasks of an `earlier` table.
    """
    table = test.map(lambda own: interval_text(own.mean, own.error)) + validation.map(lambda own: f" ({own.mean:.3f})")
    table.loc["Avg, the paper's rates"] = earlier.loc[AVERAGE].map(lambda own: f"{own.mean:.3f}")
    return table


def lead_table(test: pd.DataFrame) -> pd.DataFrame:
    """Differences of the means, Parallax's and those of recurrent mixers, and half of Welch's intervals of 95%.

    Bold are those that Holm's correction for the number of all keeps.
    """
    pairs = {f"{one} less {other}": zip(test[one], test[other], strict=True) for one, other in PAIRS}
    differences = {name: [(a.mean - b.mean, a.error, b.error) for a, b in own] for name, own in pairs.items()}
    frame = pd.DataFrame(differences, test.index)
    texts = frame.map(lambda own: interval_text(*own, form="+.3f"))
    return texts.mask(kept_by_holm(frame.map(lambda own: p_value(*own))), "**" + texts + "**")


def kept_by_holm(p_values: pd.DataFrame) -> pd.DataFrame:
    """Which of several differences are told apart at 5% when they are corrected for their number, by Holm's method."""
    ordered = p_values.stack().sort_values()
    kept = ordered <= 0.05 / np.arange(len(ordered), 0, -1)
    return kept.cummin().unstack().reindex_like(p_values)


def p_value(difference: float, *errors: Error) -> float:
    """Of a difference of means, Welch's, two-sided; degrees of freedom are rounded down, as those of its interval."""
    error, freedom = error_of_sum(errors)
    freedom = max(int(freedom), 1)

    def beyond(angle: float) -> float:
        """Student's t is a multiple of an angle's tangent; the density of the angle is a power of its cosine."""
        angles = np.linspace(angle, math.pi / 2, 10_001)
        return float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles))

    return beyond(math.atan2(abs(difference), (error * freedom) ** 0.5)) / beyond(0)
