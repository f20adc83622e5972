"""The recipes that were tried before the default."""

from pathlib import Path

import pandas as pd
from makers.common import CELL, EARLIER, PAPER, at_rate_of_task, mean_over_settings, noted, rows_in

from mixerlab.sweeps.tables.cells import at_best_rate
from mixerlab.sweeps.tables.published import distance
from mixerlab.sweeps.tables.writers import aligned

DRAFT = "9a84f38"  # the commit of the third table of results/rounding
CHECKPOINTS = {"official_accuracy": "lowest test perplexity", "test_accuracy": "last epoch"}
# Of which recipe a mixer has the runs, where a recipe changes nothing for it, or (cmp) nothing of the model.
SAME = {
    "plain": [("2x64", ("gdn", "mesa"), None)],
    "4x32": [("2x64", ("mamba",), None)],
    "PyTorch's init": [("default", ("attn", "parallax", "gdn"), "cmp")],
}
SCREEN_NOTE = """\
Mean accuracy over a task's settings, at the checkpoint of the lowest test perplexity, each setting (and seed) at its
best of three rates. Where a recipe was not run, the draft's runs stand in. Below: RMSE over the 30 means, and
Spearman's rank correlation."""


def make(folder: Path, scratch: Path) -> None:
    """How far each recipe is from the paper's means, and the main effects of the factorial."""
    rows = rows_in("screen")
    rows = rows[rows["status"] == "finished"]
    found = effects(rows[rows["study"] == "factorial"]).round(4)
    found.to_csv(folder / "effects.csv", index=False, lineterminator="\n")
    recipes = finalists(rows[rows["study"] == "finalists"])
    over = pd.DataFrame({name: means_of(recipe) for name, recipe in recipes.items()})
    paper = pd.Series({(mixer, name.task): mean for (name, mixer), mean in PAPER.numbers.items() if not name.setting})
    lines = [[*cell, f"{paper[cell]:.3f}", *(f"{mean:.3f}" for mean in over.loc[cell])] for cell in paper.index]
    text = noted([["mixer", "task", "paper", *recipes], *lines], 2, SCREEN_NOTE) + "\n"
    choices = [(column, rate) for column in CHECKPOINTS for rate in ("setting", "task", "task, for all mixers", "5e-3")]
    lines = [
        [CHECKPOINTS[column], "5e-3" if rate == "5e-3" else f"the best for each {rate}"]
        + [distance_text(means_of(recipe, column, rate), paper) for recipe in recipes.values()]
        for column, rate in choices
    ]
    text += aligned([["checkpoint", "rate", *recipes], *lines], 2) + "\n"
    (folder / "recipes.md").write_text(text)


def finalists(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each recipe in every setting of the table, at the paper's rates; one seed, but for the last."""
    rounding, default = rows_in("rounding").assign(status="finished"), rows_in("table", EARLIER)
    recipes = {"draft": rounding[rounding["git_commit"] == DRAFT], "default": default[default["seed"] == 0]}
    own = {name: rows[rows["recipe"] == name] for name in ("2x64", "plain", "4x32", "PyTorch's init")}
    for name, runs in own.items():
        for origin, mixers, task in SAME.get(name, ()):
            same = {**own, **recipes}[origin]
            same = same[same["mixer"].isin(mixers) & (same["task"] == task if task else True)]
            runs = completed(runs, same)
        recipes[name] = completed(runs[runs["task"].isin(default["task"])], recipes["draft"])
    return recipes | {"default, all seeds": default}


def completed(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """`rows`, and those of `others` in the cells that they lack."""
    present = pd.MultiIndex.from_frame(rows[CELL])
    return pd.concat([rows, others[~pd.MultiIndex.from_frame(others[CELL]).isin(present)]], ignore_index=True)


def means_of(rows: pd.DataFrame, column: str = "official_accuracy", rate: str = "setting") -> pd.Series:
    """The mean of each (mixer, task) at each setting's (and seed's) best rate, each task's, or 5e-3."""
    if rate == "setting":
        return mean_over_settings(rows.groupby([*CELL, "seed"])[column].max())
    if rate == "task":
        return mean_over_settings(rows.set_index([*CELL, "lr"])[column], ["lr"]).groupby(CELL[:2]).max()
    if rate == "task, for all mixers":
        return mean_over_settings(at_rate_of_task(rows, column))
    return mean_over_settings(rows[rows["lr"] == 5e-3].set_index(CELL)[column])


def distance_text(ours: pd.Series, paper: pd.Series) -> str:
    """RMSE and Spearman's rank correlation."""
    _, rmse, spearman = distance(ours.items(), dict(paper))
    return f"{rmse:.3f}, {spearman:.2f}"


def effects(rows: pd.DataFrame) -> pd.DataFrame:
    """Main effects by mixer and cell: mean accuracy of the recipes with a factor at its upper level, less the others'.

    A recipe is named by the factors at their upper level. Its response is the mean over seeds at the best of the three
    rates. `se` is an effect's standard error by the variance between seeds, pooled over the recipes.
    """
    seeds = at_best_rate(rows, [*CELL, "recipe"]).groupby([*CELL, "recipe"])["official_accuracy"]
    best = seeds.agg(["mean", "count", "var"]).reset_index()
    lines = []
    for key, cell in best.groupby(CELL):
        line = dict(zip(CELL, key, strict=True)) | {"recipes": len(cell), "mean": cell["mean"].mean()}
        for factor in "ABCDEFGH":
            upper = cell["recipe"].str.contains(factor)
            line[f"effect_{factor}"] = cell.loc[upper, "mean"].mean() - cell.loc[~upper, "mean"].mean()
        line["se"] = (4 * cell["var"].mean() / cell["count"].mean() / len(cell)) ** 0.5
        lines.append(line)
    return pd.DataFrame(lines)
