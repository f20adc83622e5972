"""What results/table/README.md says of the table as a whole, from its rows: learning rates, edges, leads.

    python results/table/facts.py results/table/facts.md

Needs the repository root on PYTHONPATH.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from mixerlab.records import names
from mixerlab.records.edges import MARGIN, NEAR_PERFECT
from mixerlab.records.names import in_order
from mixerlab.records.text import counted
from mixerlab.results import plan
from mixerlab.results.costs import lengths
from mixerlab.results.plan import MIXERS
from mixerlab.sweeps.report.published import read_published
from mixerlab.sweeps.tables.collect import best_per_cell
from mixerlab.sweeps.tables.intervals import half_width
from mixerlab.sweeps.tables.sources import rows_of

RESULTS = Path(__file__).parents[1]
TASKS = tuple(in_order(plan.TASKS, names.TASKS))
CELL = ["mixer", "task", "setting"]
HIGH = (1e-2, 2e-2, 4e-2)  # of interest beside the paper's rates, which end at 5e-3
MUCH = 0.05
LEADS = ("attn", "parallax")  # whose difference is split by tasks


def report() -> str:
    rows = rows_of(RESULTS / "table" / "rows.csv")
    rows = rows[rows["task"].isin(TASKS)]
    papers = read_published(RESULTS / "published" / "parallax_paper.json")["rates"]
    wide = best_per_cell(rows).set_index(CELL)
    narrow = best_per_cell(rows[rows["lr"].isin(papers)]).set_index(CELL)
    lines = [
        "Made by `python results/table/facts.py`. *Unsolved*: below "
        f"{NEAR_PERFECT} at the best of all rates. *The paper's rates*: {', '.join(f'{rate:g}' for rate in papers)}.",
        "",
        *counts(rows, wide, narrow),
        "",
        *gains(wide, narrow),
        "",
        *leads(wide, narrow),
        "",
        *leads_by_seed(rows, papers),
        "",
        *fuzzy(wide, narrow),
    ]
    return "\n".join(lines) + "\n"


def counts(rows: pd.DataFrame, wide: pd.DataFrame, narrow: pd.DataFrame) -> list[str]:
    unsolved = wide[wide["accuracy"] < NEAR_PERFECT]
    gain = (wide["accuracy"] - narrow["accuracy"])[unsolved.index]
    by_seeds = wide["by_seed"].map(len).value_counts().sort_index()
    told = [
        ("runs, replicas", f"{rows['run_id'].nunique()}, {len(rows)}"),
        ("replicas that diverged or failed", f"{(rows['status'] != 'finished').sum()}"),
        ("cells", f"{len(wide)}"),
        *((f"cells with {counted(seeds, 'seed')}", f"{cells}") for seeds, cells in by_seeds.items()),
        ("unsolved cells", f"{len(unsolved)}"),
    ]
    told += [(f"of these best at {rate:g} or more", f"{(unsolved['lr'] >= rate).sum()}") for rate in HIGH]
    for least in (MARGIN, MUCH):
        told.append((f"of these with more than {least} over the paper's rates", f"{(gain > least).sum()}"))
    for selection in ("official", "clean"):
        cells = best_per_cell(rows, selection)
        below = cells[cells["chosen_by"] < NEAR_PERFECT]
        told.append((f"daggers, {selection} selection", f"{below['edge'].sum()} of {len(below)}"))
    settings, unequal = unequal_grids(rows, unsolved)
    told.append(("settings with unsolved cells; of these with unequal rates", f"{settings}; {unequal}"))
    exact = wide[wide.index.get_level_values("task").isin(["icr", "ncr"])]["accuracy"]
    told.append(("lowest accuracy on `icr` and `ncr`", f"{exact.min():.3f}"))
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in told)]


def unequal_grids(rows: pd.DataFrame, unsolved: pd.DataFrame) -> tuple[int, int]:
    """How many settings have unsolved cells, and in how many these were not run at the same learning rates."""
    tried = rows.groupby(CELL)["lr"].unique().map(frozenset).loc[unsolved.index]
    grids = tried.groupby(level=["task", "setting"]).nunique()
    return len(grids), int((grids > 1).sum())


def gains(wide: pd.DataFrame, narrow: pd.DataFrame) -> list[str]:
    means = pd.DataFrame({name: task_means(cells).mean() for name, cells in (("all", wide), ("paper", narrow))})
    lines = ["| mean over tasks | " + " | ".join(MIXERS) + " |", "|---" * (len(MIXERS) + 1) + "|"]
    lines.append(_line("all rates", means["all"][list(MIXERS)]))
    lines.append(_line("the paper's rates", means["paper"][list(MIXERS)]))
    return [*lines, _line("gain", (means["all"] - means["paper"])[list(MIXERS)])]


def leads(wide: pd.DataFrame, narrow: pd.DataFrame) -> list[str]:
    """What each task adds to the difference between the means of two mixers."""
    first, second = LEADS
    lines = [f"| {first} minus {second} | " + " | ".join(TASKS) + " | sum |", "|---" * (len(TASKS) + 2) + "|"]
    for name, cells in (("all rates", wide), ("the paper's rates", narrow)):
        means = task_means(cells)
        share = (means[first] - means[second])[list(TASKS)] / len(TASKS)
        lines.append(_line(name, [*share, share.sum()], "+.3f"))
    return lines


def leads_by_seed(rows: pd.DataFrame, papers: Sequence[float]) -> list[str]:
    """How sure the difference of these two is, task by task: over the settings that have several seeds of both."""
    first, second = LEADS
    lines = [
        f"| {first} minus {second}, each seed at its best rate | settings | above 0 | by seed | mean |",
        "|---|--:|--:|---|---|",
    ]
    for name, chosen in (("all rates", rows), ("the paper's rates", rows[rows["lr"].isin(papers)])):
        best = chosen.groupby([*CELL, "seed"])["official_accuracy"].max().unstack("seed")
        difference = (best.loc[first] - best.loc[second]).dropna()
        for task in TASKS:
            if task not in difference.index.unique("task"):
                continue
            of_task = difference.loc[task]
            above, by_seed = (of_task.mean(axis=1) > 0).sum(), of_task.mean()
            seeds = ", ".join(f"{value:+.3f}" for value in by_seed)
            lines.append(f"| `{task}`, {name} | {len(of_task)} | {above} | {seeds} | {_with_interval(by_seed)} |")
        every = best.loc[first] - best.loc[second]
        filled = every.where(every.notna(), every[0], axis=0)
        by_seed = filled.groupby(level="task").mean().mean()
        seeds = ", ".join(f"{value:+.3f}" for value in by_seed)
        lines.append(f"| mean of the tasks, {name} | {len(filled)} | | {seeds} | {by_seed.mean():+.3f} |")
    note = (
        "±: half of a 95% Student t interval over the seeds, which share their rows, on these settings. In the mean of"
        f" the tasks, seed 0 stands for the others in the {len(every) - len(difference)} settings that have no other:"
        " it has no interval."
    )
    return [*lines, "", note]


def _with_interval(by_seed: pd.Series) -> str:
    return f"{by_seed.mean():+.3f} ± {half_width(list(by_seed)):.3f}"


def fuzzy(wide: pd.DataFrame, narrow: pd.DataFrame) -> list[str]:
    """`fcr`, where most of that difference is, by setting."""
    lines = ["| `fcr` | " + " | ".join(MIXERS) + " |", "|---" * (len(MIXERS) + 1) + "|"]
    of_all, of_papers = (cells["accuracy"].xs("fcr", level="task").unstack("mixer") for cells in (wide, narrow))
    best_at = wide["lr"].xs("fcr", level="task").unstack("mixer")
    for setting in lengths("fcr"):
        entries = (
            f"{of_all[mixer][setting]:.3f} at {best_at[mixer][setting]:g} ({of_papers[mixer][setting]:.3f})"
            for mixer in MIXERS
        )
        lines.append(f"| {setting} | {' | '.join(entries)} |")
    return [*lines, "", "Accuracy at the best of all rates, that rate, and in brackets accuracy with the paper's."]


def task_means(cells: pd.DataFrame) -> pd.DataFrame:
    return cells["accuracy"].groupby(level=["task", "mixer"]).mean().unstack("mixer")


def _line(name: str, values: Sequence[float] | pd.Series, form: str = ".3f") -> str:
    return f"| {name} | {' | '.join(format(value, form) for value in values)} |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(report())
