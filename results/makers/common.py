"""What the makers share: where things lie, the choice of rates, tables, intervals."""

import math
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from mixerlab.sweeps.tables.intervals import Error, error_of_mean, error_of_sum, interval_text, mean_text
from mixerlab.sweeps.tables.writers import aligned

RESULTS = Path(__file__).resolve().parents[1]
PAPER = published.read_published()["parallax"]
RATES = PAPER.rates
RECORDS = "records.tar.xz"
FORMER = "former.tar.xz"  # in results/challenge: Parallax's earlier default
EARLIER = "earlier.csv"  # in results/table: an earlier table, at the paper's rates and with Parallax's earlier default
CELL = ["mixer", "task", "setting"]
ADAMW_RATES = (3e-4, 1e-3, 3e-3)


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


def noted(lines: Sequence[Sequence[str]], left: int, note: str) -> str:
    """`aligned`, and a note below it."""
    return f"{aligned(lines, left)}\n\n{note}\n"


def write_in_page(folder: Path, name: str, lines: Sequence[Sequence[str]], left: int) -> None:
    """Puts the table (`aligned`) below the line `<!-- NAME -->` of the folder's page, in place of the one there."""
    page = folder / "README.md"
    mark = f"<!-- {name} -->\n"
    before, found, after = page.read_text().partition(mark)
    assert found, f"{page} has no place for {name}"
    page.write_text(before + mark + aligned(lines, left) + "\n" + re.sub(r"\A(\|.*\n)*", "", after))


def mean_change(changes: Iterable[float], form: str = "+.3f", usual: int = 0) -> str:
    """The mean ± half of Student's 95% interval, if several; how many, if that is not `usual`; nothing of none."""
    own = list(changes)
    return mean_text(own, form) + (f" ({len(own)})" if own and usual and len(own) != usual else "")


def difference_of_means(one: Sequence[float], other: Sequence[float]) -> str:
    """The difference of two means over seeds ± half of Welch's interval of 95%."""
    return interval_text(fmean(one) - fmean(other), error_of_mean(one), error_of_mean(other), form="+.3f")


def p_value(difference: float, *errors: Error) -> float:
    """Of a difference of means, Welch's, two-sided; degrees of freedom are rounded down, as those of its interval."""
    error, freedom = error_of_sum(errors)
    freedom = max(int(freedom), 1)
    if not error:
        return 1.0 if not difference else 0.0
    angle, odd = math.atan(abs(difference) / (error * freedom) ** 0.5), freedom % 2
    # Student's t has a closed distribution for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4).
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for k in range(1 + odd, freedom, 2):
        total, term = total + term, term * math.cos(angle) ** 2 * k / (k + 1)
    share = total * math.sin(angle)
    return 1 - (2 / math.pi * (angle + share) if odd else share)


def kept_by_holm(p_values: Sequence[float]) -> list[bool]:
    """Which of several differences are told apart at 5% when they are corrected for their number, by Holm's method."""
    in_order = sorted(p_values)
    count = next((i for i, p in enumerate(in_order) if p > 0.05 / (len(in_order) - i)), len(in_order))
    return [p in in_order[:count] for p in p_values]


def best_of_seeds(rows: pd.DataFrame, rates: Sequence[float], selection: Selection = "official") -> pd.DataFrame:
    """By mixer, task, setting and seed: `accuracy` of `at_best`, and how many of `replicas` learned (90% once)."""
    learned = np.isfinite(rows["steps_to_90"]) & rows["lr"].isin(rates)
    counts = learned.groupby([rows[key] for key in (*CELL, "seed")]).sum()
    return at_best(rows, rates, selection).to_frame("accuracy").assign(learned=counts, replicas=len(rates))


def learned_and_best(rows: pd.DataFrame) -> tuple[list[int], str]:
    """Of one mixer's rows of a setting: how many rates learned with each seed, and a cell with each seed's best."""
    seeds = best_of_seeds(rows, RATES).sort_index()
    best = ", ".join(f"{accuracy:.3f}" for accuracy in seeds["accuracy"])
    return seeds["learned"].tolist(), f"{seeds['learned'].sum()} of {seeds['replicas'].sum()} ({best})"


def gain_of(seeds: pd.DataFrame, mixer: str = "parallax") -> pd.Series:
    """The accuracy of a mixer less attention's, of `best_of_seeds`."""
    return seeds["accuracy"].xs(mixer) - seeds["accuracy"].xs("attn")


def recipe_table(recipes: Mapping[str, pd.DataFrame]) -> str:
    """A line for each mixer and recipe, a column for each (task, setting); a recipe has seeds of `best_of_seeds`."""
    by_cell = pd.concat(recipes, names=["recipe"]).groupby(["mixer", "recipe", "task", "setting"])
    every = by_cell.agg({"accuracy": "mean", "learned": "sum", "replicas": "sum"})
    cells = sorted({key[2:] for key in every.index}, key=place_rank)
    lines = []
    for mixer, recipe in product(in_order(every.index.unique("mixer"), MIXERS), recipes):
        if (mixer, recipe) in every.index:
            own = every.loc[mixer, recipe].reindex(cells).itertuples(index=False)
            entries = ["" if np.isnan(mean) else f"{mean:.3f} ({some:.0f}/{count:.0f})" for mean, some, count in own]
            lines.append([mixer, recipe, *entries])
    note = "Mean over seeds of the accuracy at each seed's best rate; in brackets, how many replicas reached 0.9."
    return noted([["mixer", "recipe", *map(" ".join, cells)], *lines], 2, note)


def mean_over_settings(scores: pd.Series, more: Sequence[str] = ()) -> pd.Series:
    """By mixer and task, and by `more` levels."""
    return scores.groupby([*CELL, *more]).mean().groupby([*CELL[:2], *more]).mean()


def at_rate_of_task(rows: pd.DataFrame, of: str) -> pd.Series:
    """As `at_best`, at the rate of each task that is best for all mixers together."""
    return _of_mixers(published.at_rate_of_task, rows, (), of)


def at_best(rows: pd.DataFrame, rates: Sequence[float] = RATES, selection: Selection = "official") -> pd.Series:
    """The accuracy by mixer, task, setting and seed: each seed at its best rate, if it has all of the rates."""
    return _of_mixers(published.scores_by_seed, rows, selection, rates)


def _of_mixers(choose: Callable[..., pd.Series], rows: pd.DataFrame, *arguments: object) -> pd.Series:
    """A choice with mixers for columns; rows that name no configuration are of one."""
    frame = rows.assign(column=rows["mixer"], config=rows.get("config", ""))
    return choose(frame, *arguments).rename_axis(index={"column": "mixer"})
