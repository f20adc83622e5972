"""Makes the rows, tables and figures of results/ anew from the committed records.

    python results/remake.py [NAME ...]     NAME: one of the folders with rows or records; default: all

Run it in a checkout in which mixerlab is installed. What the pages say of these numbers in prose is left to their
author.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance

import numpy as np
import pandas as pd

from mixerlab.records.archive import restore
from mixerlab.records.names import MIXERS, TASKS, rank, setting_rank
from mixerlab.records.schema import LABELS
from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.report.report import report
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect, rows_of
from mixerlab.sweeps.tables.intervals import STUDENT_T, half_width
from mixerlab.sweeps.tables.published import read_published
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.writers import aligned, rows_csv

RESULTS = Path(__file__).resolve().parent
PAPER = read_published()["parallax"]
RATES = PAPER.rates
RECORDS = "records.tar.xz"
CELL = ["mixer", "task", "setting"]
ADAMW_RATES = (3e-4, 1e-3, 3e-3)
PARITY_KEY = [*CELL, "lr", "weight_decay", "seed"]
# Columns of table/rows.csv; a report of the archive has all hyperparameters and the whole provenance.
COLUMNS = [
    *(*LABELS, "status", "error", "score", "higher_is_better", "config", "num_params", "state_size", "chance"),
    *("steps", "steps_to_90", "official_accuracy", "official_epoch", "official_token_accuracy"),
    *("clean_accuracy", "clean_epoch", "clean_val_accuracy", "test_accuracy"),
    *("device", "git_commit", "wall_time_s"),
]

# Of the arms:
ARM = ["mixer.zero_init_rho", "mixer.rope_on_rho"]
ARMS_NOTE = """\
Mean validation accuracy over a task's settings, at the checkpoint of the lowest validation loss and each setting's best
of three rates; five seeds; after ±, half of Student's 95% interval over the seeds. Below: how many of 15 replicas
(five seeds, three rates) reached a test accuracy of 0.9, where some did and some did not."""

# Of the screen:
DRAFT = "9a84f38"  # the commit of the third table of results/rounding
CHECKPOINTS = {"official_accuracy": "lowest test loss", "test_accuracy": "last epoch"}
# Of which recipe a mixer has the runs, where a recipe changes nothing for it, or (cmp) nothing of the model.
SAME = {
    "plain": [("2x64", ("gdn", "mesa"), None)],
    "4x32": [("2x64", ("mamba",), None)],
    "PyTorch's init": [("default", ("attn", "parallax", "gdn"), "cmp")],
}
SCREEN_NOTE = """\
Mean accuracy over a task's settings, at the checkpoint of the lowest test loss and each setting's best of three rates.
Where a recipe was not run, the draft's runs stand in. Below: RMSE over the 30 means, and Spearman's rank
correlation."""


def copy_report(name: str, files: Iterable[str], scratch: Path) -> None:
    """These files of a report on the archive of results/NAME."""
    made = report(RESULTS / name / RECORDS, scratch / name, formats=["png"]).folder
    for file in files:
        (RESULTS / name / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(made / file, RESULTS / name / file)


def table(scratch: Path) -> None:
    """`rows.csv` has the challenge's rows too."""
    for name in ("table", "challenge"):
        restore(RESULTS / name / RECORDS, scratch / "both")
    rows = collect(scratch / "both")[COLUMNS]
    (RESULTS / "table" / "rows.csv").write_text(rows_csv(rows.assign(git_commit=rows["git_commit"].str[:7])))
    files = ["official/solved.md", *(f"official/{name}.png" for name in ("accuracy", "difficulty", "learning_rates"))]
    files += [f"{selection}/{name}.md" for selection in ("official", "clean") for name in ("accuracy", "settings")]
    copy_report("table", files, scratch)
    compare([RESULTS / "table" / RECORDS], scratch / "beside", rules=("official", "clean", "last"), rates=RATES)
    shutil.copyfile(scratch / "beside" / "published.md", RESULTS / "table" / "beside_published.md")
    shutil.copyfile(scratch / "beside" / "means.png", RESULTS / "table" / "beside_published.png")


def challenge(scratch: Path) -> None:
    folder = RESULTS / "challenge"
    copy_report("challenge", ["official/challenge.md", "official/solved.md"], scratch)
    compare([folder / RECORDS], scratch / "beside", {"parallax": PAPER})
    shutil.copyfile(scratch / "beside" / "settings.png", folder / "official" / "beside_the_paper.png")
    default, others = rows_of(folder / RECORDS), rows_of(folder / "recipes.tar.xz")
    both = pd.concat([default.assign(origin="default"), others.assign(origin="recipes")], ignore_index=True)
    both = spread_out(both[both["task"].isin(others["task"])])
    usual = {column.mixer: set(column.values) for column in both.loc[both["origin"] == "default", "column"].unique()}
    both["recipe"] = [
        ", ".join(f"{key}={value}" for key, value in column.values if (key, value) not in usual[column.mixer])
        or "default"
        for column in both["column"]
    ]
    recipes = {name: best_of_seeds(rows, RATES) for name, rows in both.groupby("recipe", sort=False)}
    (folder / "recipes.md").write_text(recipe_table(recipes))


def adamw(scratch: Path) -> None:
    """Only seeds that both mixers have at a level count."""
    copy_report("adamw", ["official/settings.md", "official/solved.md"], scratch)
    sources = {"AdamW": RESULTS / "adamw" / RECORDS, "Muon": RESULTS / "table" / "rows.csv"}
    recipes = {}
    for optimizer, source in sources.items():
        seeds = best_of_seeds(rows_of(source), ADAMW_RATES if optimizer == "AdamW" else RATES)
        attention, parallax = (seeds.xs(mixer) for mixer in ("attn", "parallax"))
        shared = attention.index.intersection(parallax.index)
        both = {"attn": attention.loc[shared], "parallax": parallax.loc[shared]}
        recipes[optimizer] = pd.concat(both, names=["mixer"])
    cells = recipes["AdamW"].index.droplevel(["mixer", "seed"])
    (RESULTS / "adamw" / "beside_muon.md").write_text(recipe_table(recipes, set(cells)))


def best_of_seeds(rows: pd.DataFrame, rates: Sequence[float]) -> pd.DataFrame:
    """By mixer, task, setting and seed: `accuracy` at the best rate, and how many of `replicas` learned (90% once).

    Only seeds that have all of the rates; a replica that diverged has the accuracy 0.
    """
    rows = rows[rows["lr"].isin(rates) & rows["status"].isin(["finished", "diverged"])]
    rows = rows.assign(learned=np.isfinite(rows["steps_to_90"]), accuracy=rows["official_accuracy"].fillna(0.0))
    seeds = rows.groupby([*CELL, "seed"]).agg(
        accuracy=("accuracy", "max"), learned=("learned", "sum"), replicas=("lr", "nunique")
    )
    return seeds[seeds["replicas"] == len(rates)]


def recipe_table(recipes: Mapping[str, pd.DataFrame], cells: Collection[tuple[str, str]] = ()) -> str:
    """A line for each mixer and recipe, a column for each of the `cells` (task, setting); none: all that were run.

    Each recipe has the seeds of `best_of_seeds`.
    """
    every = pd.concat(recipes, names=["recipe", *CELL, "seed"]).reset_index()
    present = cells or set(zip(every["task"], every["setting"], strict=True))
    cells = sorted(present, key=lambda cell: (rank(cell[0], TASKS), setting_rank(cell[1])))
    lines = []
    for mixer in (mixer for mixer in MIXERS if mixer in set(every["mixer"])):
        for recipe in recipes:
            here = every[(every["mixer"] == mixer) & (every["recipe"] == recipe)].groupby(["task", "setting"])
            if not here.ngroups:
                continue
            means, counts = here["accuracy"].mean(), here[["learned", "replicas"]].sum()
            entries = [
                f"{means[cell]:.3f} ({counts.learned[cell]}/{counts.replicas[cell]})" if cell in means else ""
                for cell in cells
            ]
            lines.append([mixer, recipe, *entries])
    note = "Mean over seeds of the accuracy at each seed's best rate; in brackets, how many replicas reached 0.9."
    return aligned([["mixer", "recipe", *map(" ".join, cells)], *lines], 2) + f"\n\n{note}\n"


def frontier(scratch: Path) -> None:
    files = ["settings.md", "difficulty.png"]
    files = [f"{selection}/{file}" for selection in ("official", "clean") for file in files]
    copy_report("frontier", files, scratch)
    rows = rows_of(RESULTS / "frontier" / RECORDS)
    by_replica = rows.set_index(["run_id", "replica"])
    lines = []
    for cell in best_per_cell(spread_out(rows), "clean").itertuples():
        if cell.n:
            scores = list(by_replica.loc[list(cell.replicas), "clean_token_accuracy"])
            entry = f"{fmean(scores):.3f} ± {half_width(scores):.3f}"
            lines.append([cell.task, cell.setting, cell.mixer, entry, f"{min(scores):.3f}", f"{cell.lr:g}"])
    header = ["task", "setting", "mixer", "token accuracy", "worst seed", "learning rate"]
    note = "Share of right answers; epoch and rate chosen on validation rows of the trained length; mean of three seeds"
    text = aligned([header, *lines], 3) + f"\n\n{note} ± half of Student's 95% interval.\n"
    (RESULTS / "frontier" / "clean" / "token_accuracy.md").write_text(text)


def parity(scratch: Path) -> None:
    """Joins our runs with mad-lab's, `theirs.csv`."""
    folder = RESULTS / "parity"
    ours = rows_of(folder / RECORDS)
    ours = ours[ours["status"] == "finished"].rename(
        columns={"official_accuracy": "ours", "official_epoch": "our_epoch"}
    )
    ours["setting"] = ours["setting"].str.partition(", ")[0]  # without the digest of the data, which both sides read
    theirs = pd.read_csv(folder / "theirs.csv")
    theirs = theirs.rename(columns={"accuracy": "theirs", "best_epoch": "their_epoch"})
    rows = theirs[[*PARITY_KEY, "theirs", "their_epoch"]].merge(
        ours[[*PARITY_KEY, "ours", "our_epoch"]], on=PARITY_KEY, validate="one_to_one"
    )
    rows.sort_values(PARITY_KEY).to_csv(folder / "rows.csv", index=False, lineterminator="\n")
    lines = []
    for key, cell in rows.sort_values(PARITY_KEY).groupby(PARITY_KEY[:3]):
        sides = [list(cell[side]) for side in ("theirs", "ours")]
        shown = [f"{fmean(side):.3f} ({min(side):.3f} to {max(side):.3f})" for side in sides]
        shown.append(f"{fmean(sides[1]) - fmean(sides[0]):+.3f} ± {welch(*sides):.3f}")
        epochs = [f"{cell[side].min():.0f} to {cell[side].max():.0f}" for side in ("their_epoch", "our_epoch")]
        lines.append([*key, *shown, *epochs])
    header = ["mixer", "task", "setting", "mad-lab", "ours", "difference", "best epoch, mad-lab", "best epoch, ours"]
    note = "In brackets, lowest to highest seed; after ±, half of Welch's interval of 95%."
    (folder / "rows.md").write_text(aligned([header, *lines], 3) + f"\n\n{note}\n")


def arms(scratch: Path) -> None:
    """Parallax's four arms on validation, over the settings that all have, and what each of the two choices changes."""
    rows = pd.read_csv(RESULTS / "arms" / "rows.csv.xz")
    rows = rows[rows.groupby(["task", "setting"])["run_id"].transform("nunique") == 4]
    rows = rows.assign(learned=np.isfinite(rows["steps_to_90"])).set_index([*ARM, "task", "setting", "lr"])
    by_rate = rows.groupby(level=[*ARM, "task", "setting", "lr"])["clean_val_accuracy"].mean()
    best = rows.loc[by_rate.groupby([*ARM, "task", "setting"]).idxmax()]
    seeds = best.groupby([*ARM, "task", "seed"])["clean_val_accuracy"].mean().unstack(ARM)
    lines = []
    for task, accuracies in [*seeds.groupby("task"), ("mean", seeds.groupby("seed").mean())]:
        lines.append([task, *(f"{mean:.3f}" for mean in accuracies.mean())])
        for choice in ARM:
            means = accuracies.T.groupby(level=choice).mean().T
            effect = means[True] - means[False]
            lines[-1].append(f"{effect.mean():+.3f} ± {half_width(list(effect)):.3f}")
    names = [f"W_R {'zero' if zero else 'random'}, rho {'' if rotated else 'not '}rotated" for zero, rotated in seeds]
    text = aligned([["task", *names, "effect of W_R zero", "effect of rotating rho"], *lines], 1)
    learned = rows[rows["learned"].groupby(["task", "setting"]).transform(lambda some: 0 < some.sum() < len(some))]
    counts = learned.groupby(["task", "setting", *ARM])["learned"].sum().unstack(ARM)
    counts = counts.loc[sorted(counts.index, key=lambda cell: (rank(cell[0], TASKS), setting_rank(cell[1])))]
    shares = [[*cell, *(str(int(count)) for count in row)] for cell, row in counts.iterrows()]
    text += f"\n\n{ARMS_NOTE}\n\n" + aligned([["task", "setting", *names], *shares], 2) + "\n"
    (RESULTS / "arms" / "arms.md").write_text(text)


def welch(one: Sequence[float], other: Sequence[float]) -> float:
    """Half of Welch's interval of 95% for the difference of two means."""
    errors = [variance(values) / len(values) for values in (one, other)]
    if not sum(errors):
        return 0.0
    parts = [error**2 / (len(values) - 1) for error, values in zip(errors, (one, other), strict=True)]
    freedom = max(1, int(sum(errors) ** 2 / sum(parts)))
    return STUDENT_T[min(freedom, len(STUDENT_T)) - 1] * sum(errors) ** 0.5


def screen(scratch: Path) -> None:
    """How far each recipe is from the paper's means, and the main effects of the factorial."""
    rows = pd.read_csv(RESULTS / "screen" / "rows.csv.xz")
    rows = rows[rows["status"] == "finished"]
    effects(rows[rows["study"] == "factorial"]).round(4).to_csv(
        RESULTS / "screen" / "effects.csv", index=False, lineterminator="\n"
    )
    recipes = finalists(rows[rows["study"] == "finalists"])
    over = pd.DataFrame({name: means_of(recipe) for name, recipe in recipes.items()})
    paper = published_means()
    lines = [[*cell, f"{paper[cell]:.3f}", *(f"{mean:.3f}" for mean in over.loc[cell])] for cell in paper.index]
    text = aligned([["mixer", "task", "paper", *recipes], *lines], 2) + f"\n\n{SCREEN_NOTE}\n\n"
    choices = [(column, rate) for column in CHECKPOINTS for rate in ("setting", "task", "task, for all mixers", "5e-3")]
    lines = [
        [CHECKPOINTS[column], "5e-3" if rate == "5e-3" else f"the best for each {rate}"]
        + ["{:.3f}, {:.2f}".format(*distance(means_of(recipe, column, rate), paper)) for recipe in recipes.values()]
        for column, rate in choices
    ]
    text += aligned([["checkpoint", "rate", *recipes], *lines], 2) + "\n"
    (RESULTS / "screen" / "recipes.md").write_text(text)


def finalists(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each recipe in every setting of the table, at the paper's rates; one seed, but for the last."""
    rounding = pd.read_csv(RESULTS / "rounding" / "rows.csv.xz")
    default = pd.read_csv(RESULTS / "table" / "rows.csv", low_memory=False)
    default = default[default["lr"].isin(RATES) & default["task"].isin(published_means().index.unique("task"))]
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
    return pd.concat([rows, others[~pd.MultiIndex.from_frame(others[CELL]).isin(present)]])


def published_means() -> pd.Series:
    """The paper's mean of each mixer and task."""
    means = {name.task: row for name, row in PAPER.numbers.items() if not name.setting}
    return pd.DataFrame(means).rename_axis(index="mixer", columns="task").stack()


def means_of(rows: pd.DataFrame, column: str = "official_accuracy", rate: str = "setting") -> pd.Series:
    """The mean of each (mixer, task) at each setting's (and seed's) best rate, each task's, or 5e-3."""
    task = CELL[:2]
    if rate == "setting":
        return rows.groupby([*CELL, "seed"])[column].max().groupby(CELL).mean().groupby(task).mean()
    by_rate = rows.groupby([*CELL, "lr"])[column].mean().groupby([*task, "lr"]).mean()
    if rate == "task":
        return by_rate.groupby(task).max()
    if rate == "task, for all mixers":
        best = by_rate.groupby(["task", "lr"]).mean().groupby("task").idxmax()
        return pd.concat([by_rate.xs(pair, level=["task", "lr"], drop_level=False) for pair in best]).droplevel("lr")
    return by_rate.xs(5e-3, level="lr")


def distance(ours: pd.Series, paper: pd.Series) -> tuple[float, float]:
    """RMSE and Spearman's rank correlation."""
    ours = ours[paper.index]
    return float(((ours - paper) ** 2).mean() ** 0.5), float(ours.rank().corr(paper.rank()))


def effects(rows: pd.DataFrame) -> pd.DataFrame:
    """Main effects by mixer and cell: mean accuracy of the recipes with a factor at its upper level, less the others'.

    A recipe is named by the factors at their upper level. Its response is the mean over seeds at the best of the three
    rates. `se` is an effect's standard error by the variance between seeds, pooled over the recipes.
    """
    by_rate = rows.groupby([*CELL, "recipe", "lr"])["official_accuracy"].agg(["mean", "count", "var"]).reset_index()
    best = by_rate.sort_values(["mean", "lr"]).groupby([*CELL, "recipe"]).tail(1)
    lines = []
    for key, cell in best.groupby(CELL):
        line = dict(zip(CELL, key, strict=True)) | {"recipes": len(cell), "mean": cell["mean"].mean()}
        for factor in "ABCDEFGH":
            upper = cell["recipe"].str.contains(factor)
            line[f"effect_{factor}"] = cell.loc[upper, "mean"].mean() - cell.loc[~upper, "mean"].mean()
        line["se"] = (4 * cell["var"].mean() / cell["count"].mean() / len(cell)) ** 0.5
        lines.append(line)
    return pd.DataFrame(lines)


MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker for maker in (table, challenge, adamw, arms, frontier, parity, screen)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *MAKERS], help=f"of {', '.join(MAKERS)}")
    for name in parser.parse_args().names or MAKERS:
        with tempfile.TemporaryDirectory() as scratch:
            MAKERS[name](Path(scratch))
        print(f"results/{name}", flush=True)


if __name__ == "__main__":
    main()
