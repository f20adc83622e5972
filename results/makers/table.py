"""The MAD table, its figures, and the published tables beside it."""

import shutil
from pathlib import Path

import pandas as pd
from makers.common import RATES, RECORDS, copy_report, folder_of, write_in_page

from mixerlab.records.names import MIXERS, TASKS, is_challenge
from mixerlab.records.schema import LABELS
from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.writers import rows_csv

# Columns of table/rows.csv; a report of the archive has all hyperparameters and the whole provenance.
COLUMNS = [
    *(*LABELS, "status", "error", "score", "higher_is_better", "config", "num_params", "state_size", "chance"),
    *("steps", "steps_to_90", "official_accuracy", "official_epoch", "official_token_accuracy"),
    *("clean_accuracy", "clean_epoch", "clean_val_accuracy", "test_accuracy"),
    *("device", "git_commit", "wall_time_s"),
]


def make(scratch: Path) -> None:
    """`rows.csv` has the challenge's rows too."""
    rows = rows_of(*(folder_of(name) / RECORDS for name in ("table", "challenge")))[COLUMNS]
    rows = rows.sort_values("run_id", kind="stable")
    (folder_of("table") / "rows.csv").write_text(rows_csv(rows.assign(git_commit=rows["git_commit"].str[:7])))
    files = ["official/solved.md", *(f"official/{name}.png" for name in ("accuracy", "difficulty", "learning_rates"))]
    files += [f"{selection}/{name}.md" for selection in ("official", "clean") for name in ("accuracy", "settings")]
    copy_report("table", files, scratch)
    wide, narrow = (task_means(of) for of in (rows, rows[rows["lr"].isin(RATES)]))
    today = task_means(rows_of(folder_of("table") / "defaults.tar.xz"))
    both = wide.map("{:.3f}".format) + narrow.map(" ({:.3f})".format)
    for name, means in {"means": both, "defaults": today.map("{:.3f}".format)}.items():
        lines = [["task", *means], *(list(line) for line in means.itertuples())]
        write_in_page(folder_of("table"), name, lines, 1)
    compare([scratch / "table" / "rows.csv"], scratch / "beside", rules=("official", "clean", "last"), rates=RATES)
    shutil.copyfile(scratch / "beside" / "published.md", folder_of("table") / "beside_published.md")
    shutil.copyfile(scratch / "beside" / "means.png", folder_of("table") / "beside_published.png")


def task_means(rows: pd.DataFrame) -> pd.DataFrame:
    """A line for each of MAD's tasks, and their mean: a column for each mixer."""
    tasks = [task for task in TASKS if not is_challenge(task)]
    cells = best_per_cell(rows[rows["task"].isin(tasks)])
    means = cells.groupby(["task", "mixer"])["mean"].mean().unstack().loc[tasks, list(MIXERS)]
    return pd.concat([means, means.mean().to_frame("mean").T])
