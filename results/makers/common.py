"""What the makers share: where things lie, the choice of rates, tables, intervals."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from mixerlab.records.best import Selection
from mixerlab.records.names import MIXERS, in_order, place_rank
from mixerlab.sweeps.report.report import report
from mixerlab.sweeps.tables import published
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.intervals import error_of_mean, interval_text, mean_text
from mixerlab.sweeps.tables.writers import markdown

RESULTS = Path(__file__).resolve().parents[1]
PAPER = published.read_published()["parallax"]
RATES = PAPER.rates
MUON_RATES = (3e-3, 1e-2, 3e-2)  # today's
ADAMW_RATES = (3e-4, 1e-3, 3e-3)
RECORDS = "records.tar.xz"
FORMER = "former.tar.xz"  # in results/challenge: Parallax's earlier default
EARLIER = "earlier.csv"  # in results/table: an earlier table, at the paper's rates and with Parallax's earlier default
PLACE = ["task", "setting"]
CELL = ["mixer", *PLACE]


def copy_report(folder: Path, files: Iterable[str], scratch: Path, source: str = RECORDS) -> None:
    """These files of a report on the `source` (archive or rows) in a folder of results/."""
    report([folder / source], scratch / "report")
    copy_files(scratch / "report", folder, files)


def copy_files(made: Path, folder: Path, files: Iterable[str]) -> None:
    for file in files:
        shutil.copyfile(made / file, folder / file)


def rows_in(name: str, file: str = "rows.csv.xz") -> pd.DataFrame:
    """The rows of results/NAME, of its records or of a file of them."""
    path = RESULTS / name / file
    return rows_of(path) if file.endswith(".tar.xz") else pd.read_csv(path, low_memory=False)


def write_in_page(folder: Path, name: str, table: pd.DataFrame) -> None:
    """Puts the table (`markdown`) below the line `<!-- NAME -->` of the folder's page, in place of the one there."""
    page = folder / "README.md"
    mark = f"<!-- {name} -->\n"
    before, found, after = page.read_text().partition(mark)
    assert found, f"{page} has no place for {name}"
    page.write_text(before + mark + markdown(table) + re.sub(r"\A(\|.*\n)*", "", after))


def mean_change(changes: Iterable[float], form: str = "+.3f", usual: int = 0) -> str:
    """The mean ± half of Student's 95% interval, if several; how many, if that is not `usual`; nothing of none."""
    own = [change for change in changes if not np.isnan(change)]
    return mean_text(own, form) + (f" ({len(own)})" if own and usual and len(own) != usual else "")


def difference_of_means(one: Sequence[float], other: Sequence[float]) -> str:
    """The difference of two means over seeds ± half of Welch's interval of 95%."""
    return interval_text(fmean(one) - fmean(other), error_of_mean(one), error_of_mean(other), form="+.3f")


def best_of_seeds(rows: pd.DataFrame, rates: Sequence[float], selection: Selection = "official") -> pd.DataFrame:
    """By mixer, task, setting and seed: `accuracy` of `at_best`, and how many of `replicas` learned (90% once)."""
    learned = np.isfinite(rows["steps_to_90"]) & rows["lr"].isin(rates)
    counts = learned.groupby([rows[key] for key in (*CELL, "seed")]).sum()
    return at_best(rows, rates, selection).to_frame("accuracy").assign(learned=counts, replicas=len(rates))


def learned_and_best(seeds: pd.DataFrame) -> str:
    """Of `best_of_seeds` of one setting: how many replicas learned, and each seed's best accuracy."""
    best = ", ".join(map("{:.3f}".format, seeds.sort_index()["accuracy"]))
    return f"{seeds['learned'].sum()} of {seeds['replicas'].sum()} ({best})"


def recipe_table(recipes: Mapping[str, pd.DataFrame], more: str = "") -> str:
    """A line for each mixer and recipe, a column for each (task, setting); a recipe has seeds of `best_of_seeds`."""
    by_cell = pd.concat(recipes, names=["recipe"]).groupby(["mixer", "recipe", *PLACE])
    every = by_cell.agg({"accuracy": "mean", "learned": "sum", "replicas": "sum"})
    texts = [f"{mean:.3f} ({learned}/{count})" for mean, learned, count in every.itertuples(index=False)]
    table = pd.Series(texts, every.index).unstack(PLACE)
    lines = product(in_order(table.index.unique("mixer"), MIXERS), recipes)
    table = table.loc[[line for line in lines if line in table.index], sorted(table, key=place_rank)]
    note = "Mean over seeds of the accuracy at each seed's best rate; in brackets, how many replicas reached 0.9."
    return markdown(table, note + more)


def at_rate_of_task(rows: pd.DataFrame, of: str) -> pd.Series:
    """As `at_best`, at the rate of each task that is best for all mixers together."""
    return published.at_rate_of_task(by_mixer(rows), of=of).rename_axis([*CELL, "seed"])


def at_best(rows: pd.DataFrame, rates: Sequence[float] = RATES, selection: Selection = "official") -> pd.Series:
    """The accuracy by mixer, task, setting and seed: each seed at its best rate, if it has all of the rates."""
    return published.scores_by_seed(by_mixer(rows), selection, rates).rename_axis([*CELL, "seed"])


def by_mixer(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with mixers for columns; those that name no configuration are of one."""
    return rows.assign(column=rows["mixer"], config=rows.get("config", ""))
