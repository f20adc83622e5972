"""How far recipes are from the paper's 30 means, for each reading of which accuracy the paper reports.

    python results/screen/distance.py OUT.md

Needs the repository root on PYTHONPATH. A mean of a task is over all its settings. Where a recipe was not run on a
setting, the draft's runs (results/rounding: PyTorch's initial values, no norms) stand in: the table says how many
settings are a recipe's own. The distances are given with the default's runs in their place, too. The default's are
those of results/table, at the rates that all candidates have. The variants, with one choice changed, have 15 cells, and
stand in for 2x64 there. One seed.

The second part asks of each recipe whether it is nearer than the draft: whether a few means make the difference (the
RMSE without the two that gain most), how many means it fixes and breaks, and intervals of its gain in RMSE and of its
distance from the default's, from 10,000 resamples of the 30 means.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from mixerlab.results.screen.design import MATRIX_RATE, MIXERS, RECIPES, VARIANT_CELLS
from mixerlab.sweeps.report.published import FAR, Pair, distance, is_far, read_published

RESULTS = Path(__file__).parents[1]
PAPER = RESULTS / "published" / "parallax_paper.json"
TASKS = ("cmp", "icr", "fcr", "ncr", "mem", "sc")
CELL = ["mixer", "task", "setting"]

DEFAULT = "default"
WITH_PYTORCHS = "PyTorch's init"  # the default with PyTorch's initial values
CANDIDATES = ("2x64", DEFAULT, "plain", "4x32", WITH_PYTORCHS)
# "We sweep the peak learning rate ... and report the best checkpoint per task."
CHECKPOINTS = {"lowest test loss": "official_accuracy", "last epoch": "test_accuracy"}
RATES = ("each setting's best", "each task's best", "5e-3 for all")
FIRST = next(iter(CHECKPOINTS)), RATES[0]  # mad-lab's rules, and this project's `official` accuracy


def draft_rows() -> pd.DataFrame:
    return _finished(RESULTS / "rounding" / "rows.csv").assign(recipe="draft")


def finalist_rows() -> pd.DataFrame:
    """A mixer for which two finalists set the same was run for the first of them: both get its rows."""
    rows = _finished(RESULTS / "screen" / "finalist_rows.csv")
    shared = []
    for recipe, mixer in ((recipe, mixer) for recipe in CANDIDATES if recipe in RECIPES for mixer in MIXERS):
        if recipe != "2x64" and RECIPES[recipe][mixer] == RECIPES["2x64"][mixer]:
            shared.append(rows[(rows["recipe"] == "2x64") & (rows["mixer"] == mixer)].assign(recipe=recipe))
    return pd.concat([rows, *shared])


def _finished(path: Path) -> pd.DataFrame:
    rows = pd.read_csv(path, low_memory=False)
    return rows[(rows["status"] == "finished") & rows["task"].isin(TASKS)]


def of_candidate(name: str) -> pd.DataFrame:
    """The rows that a candidate has of its own.

    The default with PyTorch's initial values is the draft's recipe for mamba and mesa, and on `cmp`, whose
    auto-encoder has initial values of its own, the default: it has their rows as well.
    """
    if name == DEFAULT:
        table = _finished(RESULTS / "table" / "rows.csv").assign(recipe=DEFAULT)
        return table[(table["seed"] == 0) & table["lr"].isin(read_published(PAPER)["rates"])]
    rows = finalist_rows()
    own = rows[rows["recipe"] == name]
    if name == WITH_PYTORCHS:
        draft, default = draft_rows(), of_candidate(DEFAULT)
        as_draft = draft[draft["mixer"].isin(("mamba", "mesa"))]
        as_default = default[(default["task"] == "cmp") & ~default["mixer"].isin(as_draft["mixer"])]
        own = completed(own, pd.concat([as_draft, as_default]).assign(recipe=name))
    return own


def completed(own: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """`own`, and the rows of `others` in the cells that it lacks."""
    cells = pd.MultiIndex.from_frame(own[CELL])
    rows = pd.concat([own, others[~pd.MultiIndex.from_frame(others[CELL]).isin(cells)]])
    assert not rows.duplicated([*CELL, "lr"]).any(), "a mean would count a run twice"
    return rows


def means_of(rows: pd.DataFrame, checkpoint: str, rate: str) -> pd.Series:
    """The mean of each (mixer, task), for a key of CHECKPOINTS and one of RATES."""
    column = CHECKPOINTS[checkpoint]
    assert rate in RATES
    if rate == "each setting's best":
        return rows.groupby(CELL)[column].max().groupby(CELL[:2]).mean()
    by_rate = rows.groupby([*CELL[:2], "lr"])[column].mean()
    return by_rate.groupby(CELL[:2]).max() if rate == "each task's best" else by_rate.xs(0.005, level="lr")


def published() -> dict[tuple[str, str], float]:
    paper = read_published(PAPER)["means"]
    return {(m, t): value for t in TASKS for m, value in zip(paper["columns"], paper[t], strict=True)}


def report() -> str:
    return "\n".join([*_of_finalists(), "", *_against_the_draft(), "", *_of_variants(), "", *_of_steps()]) + "\n"


def _against_the_draft() -> list[str]:
    draft, paper = draft_rows(), published()
    before = means_of(draft, *FIRST)
    of_default = means_of(of_candidate(DEFAULT), *FIRST).loc[list(paper)].sub(pd.Series(paper)) ** 2
    lines = [
        f"**Against the draft**, chosen as above: the sum of squared errors over the 30 means; the two means that gain"
        f" most, and what each gains of it; the RMSE without them; how many means are off by more than {FAR}, fixed"
        " and newly broken; the gain in RMSE, and the distance to the default's RMSE, with 95% intervals.",
        "",
        "| recipe | squared error | gain most | RMSE of the other 28 | off | fixed | broken | gain | to the default |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in CANDIDATES:
        after = means_of(completed(of_candidate(name), draft), *FIRST)
        errors = pd.DataFrame({"old": before, "new": after}).loc[list(paper)].sub(pd.Series(paper), axis=0)
        squared = errors**2
        gain = squared["old"] - squared["new"]
        first = gain.nlargest(2)
        most = ", ".join(f"{mixer} {task} {gained:.3f}" for (mixer, task), gained in first.to_dict().items())
        other = squared.drop(first.index).mean() ** 0.5
        far = errors.map(is_far)
        fixed, broken = far["old"] & ~far["new"], far["new"] & ~far["old"]
        total = squared.sum()
        to_default = _difference(squared["new"], of_default[squared.index]) if name != DEFAULT else "-"
        lines.append(
            f"| {name} | {total['old']:.3f}, {total['new']:.3f} | {most} | {other['old']:.3f}, {other['new']:.3f} |"
            f" {far['old'].sum()}, {far['new'].sum()} | {_named(fixed)} | {_named(broken)} |"
            f" {_difference(squared['old'], squared['new'])} | {to_default} |"
        )
    return lines


def _difference(one: pd.Series, other: pd.Series) -> str:
    """The RMSE of the one less that of the other, from squared errors, with a 95% interval over resampled means."""
    both = np.stack([one, other], axis=1)
    drawn = np.random.default_rng(0).integers(0, len(both), (10_000, len(both)))
    rmse = np.concatenate([both[None], both[drawn]]).mean(axis=1) ** 0.5
    gap = rmse[:, 0] - rmse[:, 1]
    low, high = np.quantile(gap[1:], [0.025, 0.975])
    return f"{gap[0]:.3f} [{low:+.3f}, {high:+.3f}]"


def _named(chosen: pd.Series) -> str:
    return ", ".join(f"{mixer} {task}" for mixer, task in chosen[chosen].index) or "-"


def _of_finalists() -> list[str]:
    draft, paper = draft_rows(), published()
    candidates = {"draft": draft} | {name: completed(of_candidate(name), draft) for name in CANDIDATES}
    first = {name: means_of(rows, *FIRST) for name, rows in candidates.items()}
    settings = {name: rows.drop_duplicates(CELL) for name, rows in candidates.items()}
    total = settings["draft"].groupby(CELL[:2]).size()
    lines = [
        f"Means by the checkpoint of the {FIRST[0]} at {FIRST[1]} rate; in brackets how many settings are the recipe's"
        " own. The others are the draft's.",
        "",
        f"| mixer, task | settings | paper | {' | '.join(candidates)} |",
        f"|---|{'---|' * (2 + len(candidates))}",
    ]
    for mixer in MIXERS:
        for task in TASKS:
            entries = []
            for name, means in first.items():
                of_mixer = settings[name].query("mixer == @mixer and task == @task")
                own = sum(of_mixer["recipe"] == name)
                counted = f" ({own})" if own < total[mixer, task] else ""
                entries.append(f"{means[mixer, task]:.3f}{counted}")
            lines.append(
                f"| {mixer} {task} | {total[mixer, task]} | {paper[mixer, task]:.3f} | {' | '.join(entries)} |"
            )
    for mixer in MIXERS:
        entries = [f"{means[mixer].loc[list(TASKS)].mean():.3f}" for means in first.values()]
        mean = sum(paper[mixer, task] for task in TASKS) / len(TASKS)
        lines.append(f"| {mixer}, mean of the tasks | | {mean:.3f} | {' | '.join(entries)} |")
    lines += ["", "RMSE over the 30 means, and Spearman's rank correlation:", "", *_distances(candidates)]
    default = of_candidate(DEFAULT)
    else_default = {name: completed(of_candidate(name), default) for name in CANDIDATES if name != DEFAULT}
    told = "The same with the default's runs, instead of the draft's, where a recipe was not run:"
    return [*lines, "", told, "", *_distances(else_default)]


def _of_variants() -> list[str]:
    variants = _finished(RESULTS / "screen" / "variant_rows.csv")
    # Attention and Parallax were run again on these cells.
    base = completed(variants[variants["recipe"] == "2x64"], of_candidate("2x64"))
    return [
        "**One choice changed**, on 15 cells: means of a task's cells, chosen as above; `-`: not run. The paper's means"
        " are over all settings, and show only the direction.",
        "",
        *_on_the_cells("2x64", base, variants),
    ]


def _of_steps() -> list[str]:
    steps = _finished(RESULTS / "screen" / "step_rows.csv")
    slow = steps["recipe"] == f"matrices at {MATRIX_RATE:g}"
    steps.loc[slow, "lr"] = (steps["lr"] / MATRIX_RATE).round(6)  # those of the default that they stand for
    return [
        "**Muon's step for a matrix**, on the same 15 cells. *no update scale*: as in the paper's equation, without a"
        f" factor for the matrix's shape. *matrices at {MATRIX_RATE:g}*: at {MATRIX_RATE:g} of the default's rates; the"
        " other parameters keep theirs. *spectral scale*: sqrt(rows / columns) also where it is below 1, where the"
        " default has 1.",
        "",
        *_on_the_cells(DEFAULT, of_candidate(DEFAULT), steps),
    ]


def _on_the_cells(name: str, base: pd.DataFrame, others: pd.DataFrame) -> list[str]:
    """The recipes of `others`, which were run on VARIANT_CELLS, beside the recipe `name`, whose rows are `base`."""
    draft, paper = draft_rows(), published()
    chosen = pd.MultiIndex.from_tuples([(task, one) for task, settings in VARIANT_CELLS.items() for one in settings])

    def of_cells(rows: pd.DataFrame) -> pd.DataFrame:
        return rows[pd.MultiIndex.from_frame(rows[["task", "setting"]]).isin(chosen)]

    cells = {name: of_cells(base)}
    cells |= {recipe: rows for recipe, rows in of_cells(others).groupby("recipe", sort=False) if recipe != name}
    means = {recipe: means_of(rows, *FIRST) for recipe, rows in cells.items()}
    lines = [
        f"| mixer, task | cells | paper, all settings | {' | '.join(cells)} |",
        f"|---|{'---|' * (2 + len(cells))}",
    ]
    for mixer in (mixer for mixer in MIXERS if mixer in set(others["mixer"])):
        for task in TASKS:
            entries = [f"{of[mixer, task]:.3f}" if (mixer, task) in of else "-" for of in means.values()]
            number = len(VARIANT_CELLS[task])
            lines.append(f"| {mixer} {task} | {number} | {paper[mixer, task]:.3f} | {' | '.join(entries)} |")
    base_name = "the default" if name == DEFAULT else name
    told = "RMSE over the 30 means, and Spearman's rank correlation, with these cells in the place of those of"
    whole = {recipe: completed(completed(rows, base), draft) for recipe, rows in cells.items()}
    squared = {recipe: (means_of(rows, *FIRST)[list(paper)] - pd.Series(paper)) ** 2 for recipe, rows in whole.items()}
    gaps = [f"{recipe} {_difference(one, squared[name])}" for recipe, one in squared.items() if recipe != name]
    from_base = f"RMSE less that of {base_name}, as in the first line, with 95% intervals: {', '.join(gaps)}."
    return [*lines, "", f"{told} {base_name}:", "", *_distances(whole), "", from_base]


def _distances(candidates: Mapping[str, pd.DataFrame]) -> list[str]:
    """A line for each checkpoint and rate, a column for each candidate."""
    paper = published()
    lines = [f"| checkpoint | rate | {' | '.join(candidates)} |", f"|---|---|{'---|' * len(candidates)}"]
    for checkpoint in CHECKPOINTS:
        for rate in RATES:
            entries = []
            for rows in candidates.values():
                ours = means_of(rows, checkpoint, rate)
                pairs = [Pair("means", t, m, value, float(ours[m, t]), 1, 1) for (m, t), value in paper.items()]
                _, rmse, spearman = distance(pairs)
                entries.append(f"{rmse:.3f}, {spearman:.2f}")
            lines.append(f"| {checkpoint} | {rate} | {' | '.join(entries)} |")
    return lines


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(report())
