"""The MAD table, its figures, and the published tables beside it."""

import shutil
from itertools import combinations
from pathlib import Path

from makers.common import EARLIER, RECORDS, copy_report, kept_by_holm, p_value, write_in_page

from mixerlab.records.names import AVERAGE
from mixerlab.records.schema import LABELS
from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.intervals import interval_text
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.tables import Table, task_table
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
    test, validation = (task_table(best_per_cell(frame, selection)) for selection in ("official", "clean"))
    earlier = task_table(best_per_cell(spread_out(rows_of(folder / EARLIER))))
    write_in_page(folder, "means", means_lines(test, validation, earlier), 1)
    write_in_page(folder, "lead", lead_lines(test), 1)
    sources, labels = [scratch / "report" / "rows.csv", folder / EARLIER], ["default rates", "the paper's rates"]
    compare(sources, scratch / "beside", labels=labels, rules=("official", "last"))
    shutil.copyfile(scratch / "beside" / "published.md", folder / "beside_published.md")
    shutil.copyfile(scratch / "beside" / "means.png", folder / "beside_published.png")


def means_lines(test: Table, validation: Table, earlier: Table) -> list[list[str]]:
    """The report's means of accuracy and their intervals, chosen on test and, in brackets, the means on validation.

    Below them those of all tasks of an `earlier` table.
    """
    lines = [["task", *(column.mixer for column in test.columns)]]
    for name, row in test.rows.items():
        others = validation.rows[name]
        texts = {column: interval_text(entry.mean, entry.error) for column, entry in row.items()}
        lines.append([*name, *(f"{text} ({others[column].mean:.3f})" for column, text in texts.items())])
    lines.append(["Avg, the paper's rates", *(f"{entry.mean:.3f}" for entry in earlier.rows[AVERAGE,].values())])
    return lines


def lead_lines(test: Table) -> list[list[str]]:
    """Differences of the means, Parallax's and those of recurrent mixers, and half of Welch's intervals of 95%.

    Bold are those that Holm's correction for the number of all keeps.
    """
    differences = []
    for row in test.rows.values():
        by_mixer = {column.mixer: entry for column, entry in row.items()}
        pairs = ((by_mixer[one], by_mixer[other]) for one, other in PAIRS)
        differences += [(a.mean - b.mean, a.error, b.error) for a, b in pairs]
    told_apart = kept_by_holm([p_value(*difference) for difference in differences])
    texts = [
        f"**{text}**" if apart else text
        for text, apart in zip((interval_text(*own, form="+.3f") for own in differences), told_apart, strict=True)
    ]
    rows = [[*name, *texts[i * len(PAIRS) :][: len(PAIRS)]] for i, name in enumerate(test.rows)]
    return [["task", *(f"{one} less {other}" for one, other in PAIRS)], *rows]
