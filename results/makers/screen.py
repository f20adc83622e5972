"""The recipes that were tried before the default."""

import itertools
from pathlib import Path

import pandas as pd
from makers import common
from makers.common import CELL, EARLIER, PAPER, RECORDS, at_best, at_rate_of_task, rows_in

from mixerlab.records.names import MIXERS, TASKS
from mixerlab.sweeps.tables.cells import at_best_rate
from mixerlab.sweeps.tables.published import distance
from mixerlab.sweeps.tables.writers import in_place_order, markdown

LONGER_SIDE = 5  # our rate of `match_rms_adamw` for a rate of the paper's, if its scale is the longer side's root
DRAFT = "9a84f38"  # the commit of the third table of results/rounding
CHECKPOINTS = {"official_accuracy": "lowest test perplexity", "test_accuracy": "last epoch"}
# Of which recipe some mixers have the runs, on some tasks: it changes nothing for these, or (cmp) nothing of the model.
SAME = {
    "plain": ("2x64", ("gdn", "mesa"), TASKS),
    "4x32": ("2x64", ("mamba",), TASKS),
    "PyTorch's init": ("default", ("attn", "parallax", "gdn"), ("cmp",)),
}
SCREEN_NOTE = """\
Mean accuracy over a task's settings, at the checkpoint of the lowest test perplexity, each setting (and seed) at its
best of three rates. Where a recipe was not run, the draft's runs stand in. Below: RMSE over the 30 means, and
Spearman's rank correlation."""


def make(folder: Path, scratch: Path) -> None:
    """How far each recipe is from the paper's means, and the main effects of the factorial."""
    rows = rows_in("screen")
    rows = rows[rows["status"] == "finished"]
    effects(rows[rows["study"] == "factorial"]).round(4).to_csv(folder / "effects.csv", lineterminator="\n")
    recipes = finalists(rows[rows["study"] == "finalists"])
    paper = PAPER.numbers.xs("", level="setting").swaplevel()
    means = {"paper": paper} | {name: means_of(recipe) for name, recipe in recipes.items()}
    table = pd.DataFrame(means).loc[paper.index].map("{:.3f}".format).rename_axis(["mixer", "task"])
    choices = itertools.product(CHECKPOINTS, ("setting", "task", "task, for all mixers", "5e-3"))
    distances = {
        (CHECKPOINTS[column], rate if rate == "5e-3" else f"the best for each {rate}"): {
            name: distance_text(means_of(recipe, column, rate), paper) for name, recipe in recipes.items()
        }
        for column, rate in choices
    }
    below = pd.DataFrame.from_dict(distances, "index").rename_axis(["checkpoint", "rate"])
    (folder / "recipes.md").write_text(f"{markdown(table, SCREEN_NOTE)}\n{markdown(below)}")
    common.write_in_page(folder, "scale", scale_table(rows[rows["study"] == "scale of Muon"]))


def scale_table(longer: pd.DataFrame) -> pd.DataFrame:
    """The accuracy at the paper's rates with our scale of Muon, with the longer side's, and in brackets the paper's."""
    arms = rows_in("arms")
    authors = arms[~arms["mixer.zero_init_rho"] & arms["mixer.rope_on_rho"]].assign(mixer="parallax")
    others = rows_in("table", EARLIER)
    others = others[others["mixer"] != "parallax"]
    ours = pd.concat([authors, others, rows_in("challenge", RECORDS)], ignore_index=True).drop(columns="config")
    sides = [at_best(ours), at_best(longer.assign(lr=longer["lr"] / LONGER_SIDE))]
    means = pd.concat(sides, axis=1, join="inner").groupby(CELL).mean()
    paper = PAPER.numbers.reorder_levels(CELL)
    texts = {
        cell: f"{own:.3f}, {other:.3f}" + (f" ({paper[cell]:.2f})" if cell in paper.index else "")
        for cell, own, other in means.itertuples()
    }
    return in_place_order(pd.Series(texts).rename_axis(CELL).unstack("mixer")[list(MIXERS)].fillna(""))


def finalists(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each recipe in every setting of the table, at the paper's rates; one seed, but for the last."""
    rounding, default = rows_in("rounding").assign(status="finished"), rows_in("table", EARLIER)
    rows = rows[rows["task"].isin(default["task"])]
    recipes = {"draft": rounding[rounding["git_commit"] == DRAFT], "default": default[default["seed"] == 0]}
    for name in ("2x64", "plain", "4x32", "PyTorch's init"):
        runs = rows[rows["recipe"] == name]
        if name in SAME:
            origin, mixers, tasks = SAME[name]
            same = recipes[origin]
            runs = completed(runs, same[same["mixer"].isin(mixers) & same["task"].isin(tasks)])
        recipes[name] = completed(runs, recipes["draft"])
    return recipes | {"default, all seeds": default}


def completed(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """`rows`, and those of `others` in the cells that they lack."""
    present = pd.MultiIndex.from_frame(rows[CELL])
    return pd.concat([rows, others[~pd.MultiIndex.from_frame(others[CELL]).isin(present)]], ignore_index=True)


def means_of(rows: pd.DataFrame, column: str = "official_accuracy", rate: str = "setting") -> pd.Series:
    """The mean of each (mixer, task) at each setting's (and seed's) best rate, each task's, or 5e-3."""
    if rate in ("task", "5e-3"):
        means = rows.groupby([*CELL, "lr"])[column].mean().groupby(["mixer", "task", "lr"]).mean()
        return means.xs(5e-3, level="lr") if rate == "5e-3" else means.groupby(["mixer", "task"]).max()
    one_rate = rate == "task, for all mixers"
    scores = at_rate_of_task(rows, column) if one_rate else rows.groupby([*CELL, "seed"])[column].max()
    return scores.groupby(CELL).mean().groupby(["mixer", "task"]).mean()


def distance_text(ours: pd.Series, paper: pd.Series) -> str:
    """RMSE and Spearman's rank correlation."""
    _, rmse, spearman = distance(ours, paper)
    return f"{rmse:.3f}, {spearman:.2f}"


def effects(rows: pd.DataFrame) -> pd.DataFrame:
    """Main effects by mixer and cell: mean accuracy of the recipes with a factor at its upper level, less the others'.

    A recipe is named by the factors at their upper level. Its response is the mean over seeds at the best of the three
    rates. `se` is an effect's standard error by the variance between seeds, pooled over the recipes.
    """
    seeds = at_best_rate(rows, [*CELL, "recipe"]).groupby([*CELL, "recipe"])["official_accuracy"]
    mean, count, variance = (seeds.agg(part).unstack("recipe") for part in ("mean", "count", "var"))
    found = pd.DataFrame({"recipes": mean.notna().sum(axis=1), "mean": mean.mean(axis=1)})
    for factor in "ABCDEFGH":
        upper = mean.columns.str.contains(factor)
        found[f"effect_{factor}"] = mean.loc[:, upper].mean(axis=1) - mean.loc[:, ~upper].mean(axis=1)
    return found.assign(se=(4 * variance.mean(axis=1) / count.mean(axis=1) / found["recipes"]) ** 0.5)
