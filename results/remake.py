"""Makes the rows, tables and figures of results/ anew from the committed records.

    python results/remake.py [NAME ...]     NAME: one of the folders with rows or records; default: all

Run it in a checkout in which mixerlab is installed. What the pages say of these numbers in prose is left to their
author.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, variance
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.analyse import write as write_analysis
from mixerlab.records.names import MIXERS, TASKS, in_order, is_challenge, place_rank
from mixerlab.records.schema import LABELS
from mixerlab.sweeps.figures.by_task import named_sheet
from mixerlab.sweeps.figures.comparison import BAND
from mixerlab.sweeps.figures.curves import SEEDS, by_replica, draw_curves, show_epochs
from mixerlab.sweeps.figures.marks import line_handles
from mixerlab.sweeps.figures.sheet import Sheet, figure_style, save
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.report.compare import compare
from mixerlab.sweeps.report.report import report
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import curves, rows_of
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.intervals import error_of_sum, half_width, student_t
from mixerlab.sweeps.tables.published import distance, ranges, read_published
from mixerlab.sweeps.tables.swept import as_yaml, spread_out
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

# Of AdamW beside Muon:
CLAIM_NOTE = """\
Accuracy of Parallax less that of attention, each at its best of three rates, by seed (how many have all of the levels);
after ±, half of Student's 95% interval over seeds, of the difference Welch's."""

# Of the frontier:
FRONTIER_NOTE = (
    "Share of right answers; epoch and rate chosen on validation rows of the trained length; mean of three seeds"
    " ± half of Student's 95% interval."
)

# Of the ingredients:
INGREDIENTS_NOTE = """\
Change of the mean accuracy over a task's settings (those that both sides have) at the Parallax paper's three rates,
AdamW at its own three; each seed at its best rate and at the checkpoint of the lowest test loss, unless the ingredient
is another rule. Mean over mixers; after ±, half of Student's 95% interval over mixers, each the mean of its seeds, or
over mixers and seeds together where fewer than three mixers have the ingredient. No rows: epochs, batch size."""
Effect = tuple[float, list[float]]  # the mean, and what its interval is over
EFFECT: dict = {"color": "#0072B2", "markersize": 3.5, "ecolor": "0.15", "elinewidth": 0.8}

# Of the arms:
ARM = ["mixer.zero_init_rho", "mixer.rope_on_rho"]
ARMS_NOTE = """\
Mean validation accuracy over a task's settings, at the checkpoint of the lowest validation loss and each setting's best
of three rates; five seeds; after ±, half of Student's 95% interval over the seeds. A setting of more than 256 tokens
has three seeds and a line of its own, below the mean. Then: how many of a setting's replicas (15, or 9: seeds times
three rates) reached a test accuracy of 0.9, where some did and some did not."""
LONG = ("seq_len-512", "seq_len-1024")

# Of the board:
GAINS_NOTE = """\
Accuracy of Parallax less attention's, each seed at its better rate and at the checkpoint of the lowest test loss; after
±, half of Student's 95% interval over the seeds that both have (how many, if not three)."""
SEARCH_NOTE = """\
Mean validation accuracy over the three mixers and both tasks at the checkpoint of the lowest validation loss, one seed;
what diverged counts as 0. Bold: the best rate and the better of its neighbours, which the board has."""

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

# Of text:
OF_TEXT = ("attn", "parallax", "gdn", "kda", "mesa", "mamba", "attn+gdn")
TEXT_OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}
SEARCH_SEED = 3
BITS = "clean_bits_per_byte"
ENGLISH = "Bits per byte of test rows at the checkpoint of the lowest validation loss, the lower the better"
TEXT_RATES_NOTE = """\
Bits per byte of validation rows at the end of the search for the learning rate, one seed. Bold: the rate that the runs
have; †: it is the smallest or the largest that was tried."""
BITS_NOTE = f"""\
{ENGLISH}: mean over seeds
(how many, if not three) ± half of Student's 95% interval."""
DIFFERENCES_NOTE = """\
Differences of these means, below 0 where the first is better; after ±, half of Welch's interval of 95%."""
CONTROLS_NOTE = f"""\
{ENGLISH}: one run less the
plain run of its mixer, optimizer and seed. `model.d_ff`: about as many parameters as Parallax (of attention) or as
attention (of the others). Standard deviation between seeds of the plain runs of attention and Parallax:
{{}}; of the difference of two runs it is 1.4 times that."""
TEXT_CLAIMS_NOTE = """\
Differences that the claim says to be above or below 0, or none: means over three seeds ± half of Student's 95%
interval, over layers if none is named; of eight layers the last one. The verdict is by the interval."""
CONVERSION_NOTE = f"""\
{ENGLISH}. All runs go on
from one seed of attention that Muon trained, the best on test ({{:.4f}}). Mean over three seeds of going on ± half of
Student's 95% interval (learning rate, that of the mixer's plain run); of the differences by seed."""

# Of the analysis:
CLAIMS_NOTE = """\
Differences that the claim says to be above or below 0, or none: means over three seeds ± half of Student's 95%
interval, after 60 epochs, over layers if none is named. The verdict is by the interval of the mean over the tasks:
open, or none found, if it includes 0."""


def copy_report(name: str, files: Iterable[str], scratch: Path, source: str = RECORDS) -> None:
    """These files of a report on the `source` (archive or rows) in results/NAME."""
    made = report(RESULTS / name / source, scratch / name, formats=["png"]).folder
    for file in files:
        (RESULTS / name / file).parent.mkdir(exist_ok=True)
        shutil.copyfile(made / file, RESULTS / name / file)


def rows_in(name: str, file: str = "rows.csv.xz") -> pd.DataFrame:
    return pd.read_csv(RESULTS / name / file, low_memory=False)


def noted(lines: Sequence[Sequence[str]], left: int, note: str) -> str:
    """`aligned`, and a note below it."""
    return f"{aligned(lines, left)}\n\n{note}\n"


def mean_change(changes: Sequence[float], form: str = "+.3f") -> str:
    """The mean over seeds ± half of Student's 95% interval."""
    return f"{fmean(changes):{form}} ± {half_width(changes):{form.lstrip('+')}}"


def difference_of_means(more: Sequence[float], less: Sequence[float]) -> str:
    """The difference ± half of Welch's interval of 95%."""
    return difference_of_sums([more], [less])


def difference_of_sums(more: Sequence[Sequence[float]], less: Sequence[Sequence[float]], digits: int = 3) -> str:
    """As `difference_of_means`, of sums of means."""
    error, freedom = error_of_sum([(variance(side) / len(side), len(side) - 1) for side in (*more, *less)])
    middle = sum(map(fmean, more)) - sum(map(fmean, less))
    return f"{middle:+.{digits}f} ± {student_t(freedom) * error**0.5:.{digits}f}"


def table(scratch: Path) -> None:
    """`rows.csv` has the challenge's rows too."""
    rows = rows_of(*(RESULTS / name / RECORDS for name in ("table", "challenge")))[COLUMNS]
    rows = rows.sort_values("run_id", kind="stable")
    (RESULTS / "table" / "rows.csv").write_text(rows_csv(rows.assign(git_commit=rows["git_commit"].str[:7])))
    files = ["official/solved.md", *(f"official/{name}.png" for name in ("accuracy", "difficulty", "learning_rates"))]
    files += [f"{selection}/{name}.md" for selection in ("official", "clean") for name in ("accuracy", "settings")]
    copy_report("table", files, scratch)
    compare([scratch / "table" / "rows.csv"], scratch / "beside", rules=("official", "clean", "last"), rates=RATES)
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
    """Only cells that were run with AdamW count, and seeds that both mixers have."""
    copy_report("adamw", ["official/settings.md", "official/solved.md"], scratch)
    sources = {"AdamW": (RESULTS / "adamw" / RECORDS, ADAMW_RATES), "Muon": (RESULTS / "table" / "rows.csv", RATES)}
    recipes = {}
    for optimizer, (source, rates) in sources.items():
        rows = rows_of(source)
        seeds = best_of_seeds(rows[rows["mixer"].isin(["attn", "parallax"])], rates)
        recipes[optimizer] = seeds.groupby(["task", "setting", "seed"]).filter(lambda both: len(both) == 2)
    cells, others = (seeds.index.droplevel(["mixer", "seed"]) for seeds in recipes.values())
    recipes["Muon"] = recipes["Muon"][others.isin(cells)]
    (RESULTS / "adamw" / "beside_muon.md").write_text(recipe_table(recipes))
    (RESULTS / "adamw" / "claim.md").write_text(claim_table(recipes))


def claim_table(recipes: Mapping[str, pd.DataFrame]) -> str:
    """What Parallax gains over attention with each optimizer, over the levels of the challenge of a kind.

    Of seeds that have all levels of the kind.
    """
    gains = {optimizer: gain_of(seeds).unstack(["task", "setting"]) for optimizer, seeds in recipes.items()}
    levels = [place for place in gains["AdamW"] if is_challenge(place[0])]
    recall = [place for place in levels if place[0] != "sc_challenge"]
    kinds = {
        "recall at 512 and 1,024 tokens": [place for place in recall if "2048" not in place[1]],
        "recall at 2,048 tokens": [place for place in recall if "2048" in place[1]],
        "copying at 512 to 2,048 tokens": [place for place in levels if place not in recall],
        "all nine levels": levels,
    }
    lines = [["levels", *gains, "Muon less AdamW"]]
    for kind, places in kinds.items():
        sides = [list(own[places].dropna().mean(axis=1)) for own in gains.values()]
        texts = [f"{mean_change(side)} ({len(side)})" for side in sides]
        lines.append([kind, *texts, difference_of_means(sides[1], sides[0])])
    return noted(lines, 1, CLAIM_NOTE)


def best_of_seeds(rows: pd.DataFrame, rates: Sequence[float]) -> pd.DataFrame:
    """By mixer, task, setting and seed: `accuracy` of `at_best`, and how many of `replicas` learned (90% once)."""
    learned = np.isfinite(rows["steps_to_90"]) & rows["lr"].isin(rates)
    counts = learned.groupby([rows[key] for key in (*CELL, "seed")]).sum()
    return at_best(rows, rates).to_frame("accuracy").assign(learned=counts, replicas=len(rates))


def gain_of(seeds: pd.DataFrame) -> pd.Series:
    """The accuracy of Parallax less attention's, of `best_of_seeds`."""
    return seeds["accuracy"].xs("parallax") - seeds["accuracy"].xs("attn")


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


def frontier(scratch: Path) -> None:
    files = [f"{rule}/{file}" for rule in ("official", "clean") for file in ("settings.md", "difficulty.png")]
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
    (RESULTS / "frontier" / "clean" / "token_accuracy.md").write_text(noted([header, *lines], 3, FRONTIER_NOTE))


def parity(scratch: Path) -> None:
    """Joins our runs with mad-lab's, `theirs.csv`."""
    folder = RESULTS / "parity"
    ours = rows_of(folder / RECORDS)
    ours = ours[ours["status"] == "finished"].rename(
        columns={"official_accuracy": "ours", "official_epoch": "our_epoch"}
    )
    ours["setting"] = ours["setting"].str.partition(", ")[0]  # without the digest of the data, which both sides read
    theirs = rows_in("parity", "theirs.csv").rename(columns={"accuracy": "theirs", "best_epoch": "their_epoch"})
    rows = theirs[[*PARITY_KEY, "theirs", "their_epoch"]].merge(
        ours[[*PARITY_KEY, "ours", "our_epoch"]], on=PARITY_KEY, validate="one_to_one"
    )
    rows = rows.sort_values(PARITY_KEY)
    rows.to_csv(folder / "rows.csv", index=False, lineterminator="\n")
    lines = []
    for key, cell in rows.groupby(CELL):
        sides = [list(cell[side]) for side in ("theirs", "ours")]
        shown = [f"{fmean(side):.3f} ({min(side):.3f} to {max(side):.3f})" for side in sides]
        shown.append(difference_of_means(sides[1], sides[0]))
        epochs = [f"{cell[side].min():.0f} to {cell[side].max():.0f}" for side in ("their_epoch", "our_epoch")]
        lines.append([*key, *shown, *epochs])
    header = ["mixer", "task", "setting", "mad-lab", "ours", "difference", "best epoch, mad-lab", "best epoch, ours"]
    note = "In brackets, lowest to highest seed; after ±, half of Welch's interval of 95%."
    (folder / "rows.md").write_text(noted([header, *lines], 3, note))


def arms(scratch: Path) -> None:
    """Parallax's four arms on validation, over the settings that all have, and what each of the two choices changes."""
    rows = rows_in("arms")
    long = rows["setting"].isin(LONG)
    rows["group"] = rows["task"].where(~long, rows["task"] + ", " + rows["setting"])
    rows = rows.assign(learned=np.isfinite(rows["steps_to_90"])).set_index([*ARM, "task", "setting", "lr"])
    by_rate = rows.groupby(level=[*ARM, "task", "setting", "lr"])["clean_val_accuracy"].mean()
    best = rows.loc[by_rate.groupby([*ARM, "task", "setting"]).idxmax()]
    seeds = best.groupby([*ARM, "group", "seed"])["clean_val_accuracy"].mean().unstack(ARM)
    tasks = seeds[seeds.index.isin(TASKS, level="group")]
    rest = seeds.drop(tasks.index)
    lines = []
    for task, accuracies in [*tasks.groupby("group"), ("mean", tasks.groupby("seed").mean()), *rest.groupby("group")]:
        lines.append([task, *(f"{mean:.3f}" for mean in accuracies.mean())])
        for choice in ARM:
            means = accuracies.T.groupby(level=choice).mean().T
            lines[-1].append(mean_change(list(means[True] - means[False])))
    names = [f"W_R {'zero' if zero else 'random'}, rho {'' if rotated else 'not '}rotated" for zero, rotated in seeds]
    text = noted([["task", *names, "effect of W_R zero", "effect of rotating rho"], *lines], 1, ARMS_NOTE)
    learned = rows[rows["learned"].groupby(["task", "setting"]).transform(lambda some: 0 < some.sum() < len(some))]
    counts = learned.groupby(["task", "setting", *ARM])["learned"].sum().unstack(ARM)
    counts = counts.loc[sorted(counts.index, key=place_rank)]
    shares = [[*cell, *(str(int(count)) for count in row)] for cell, row in counts.iterrows()]
    text += "\n" + aligned([["task", "setting", *names], *shares], 2) + "\n"
    (RESULTS / "arms" / "arms.md").write_text(text)


def board(scratch: Path) -> None:
    """Mixers by optimizers, what Parallax gains over attention with each, and the search for the rates."""
    folder = RESULTS / "board"
    copy_report("board", ["official/solved.md", "official/settings.png"], scratch, "rows.csv")
    rows = rows_of(folder / "rows.csv")
    seeds = {name: best_of_seeds(own, sorted(own["lr"].unique())) for name, own in rows.groupby("optimizer")}
    (folder / "accuracy.md").write_text(recipe_table(seeds))
    gains = {name: gain_of(own) for name, own in seeds.items()}
    by_cell = pd.concat(gains, names=["optimizer"]).dropna().unstack("optimizer").groupby(["task", "setting"])
    lines = [["task", "setting", *gains]]
    for cell, own in sorted(by_cell, key=lambda one: place_rank(one[0])):
        entries = [list(own[name].dropna()) for name in gains]
        texts = [mean_change(one) + ("" if len(one) == 3 else f" ({len(one)})") if one else "" for one in entries]
        lines.append([*cell, *texts])
    (folder / "gains.md").write_text(noted(lines, 2, GAINS_NOTE))
    searched = rows_in("board", "search.csv")
    searched = searched.assign(score=searched["clean_val_accuracy"].where(searched["status"] == "finished", 0.0))
    means = searched.groupby(["optimizer", "lr"])["score"].mean().unstack()
    lines = [["optimizer", *(f"{rate:g}" for rate in means)]]
    for name, own in means.iterrows():
        best = own.argmax()
        chosen = {best, max({best - 1, best + 1} & {*range(len(own))}, key=lambda place: own.iloc[place])}
        lines.append([name, *(f"**{x:.3f}**" if i in chosen else f"{x:.3f}" for i, x in enumerate(own))])
    (folder / "rates.md").write_text(noted(lines, 1, SEARCH_NOTE))


def screen(scratch: Path) -> None:
    """How far each recipe is from the paper's means, and the main effects of the factorial."""
    rows = rows_in("screen")
    rows = rows[rows["status"] == "finished"]
    effects(rows[rows["study"] == "factorial"]).round(4).to_csv(
        RESULTS / "screen" / "effects.csv", index=False, lineterminator="\n"
    )
    recipes = finalists(rows[rows["study"] == "finalists"])
    over = pd.DataFrame({name: means_of(recipe) for name, recipe in recipes.items()})
    paper = pd.Series(
        {(mixer, name.task): mean for (name, mixer), (mean,) in PAPER.numbers.items() if not name.setting}
    )
    lines = [[*cell, f"{paper[cell]:.3f}", *(f"{mean:.3f}" for mean in over.loc[cell])] for cell in paper.index]
    text = noted([["mixer", "task", "paper", *recipes], *lines], 2, SCREEN_NOTE) + "\n"
    choices = [(column, rate) for column in CHECKPOINTS for rate in ("setting", "task", "task, for all mixers", "5e-3")]
    lines = [
        [CHECKPOINTS[column], "5e-3" if rate == "5e-3" else f"the best for each {rate}"]
        + [distance_text(means_of(recipe, column, rate), paper) for recipe in recipes.values()]
        for column, rate in choices
    ]
    text += aligned([["checkpoint", "rate", *recipes], *lines], 2) + "\n"
    (RESULTS / "screen" / "recipes.md").write_text(text)


def finalists(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each recipe in every setting of the table, at the paper's rates; one seed, but for the last."""
    rounding, default = rows_in("rounding"), rows_in("table", "rows.csv")
    default = default[default["lr"].isin(RATES) & default["task"].isin(PAPER.over)]
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


def means_of(rows: pd.DataFrame, column: str = "official_accuracy", rate: str = "setting") -> pd.Series:
    """The mean of each (mixer, task) at each setting's (and seed's) best rate, each task's, or 5e-3."""
    if rate == "setting":
        return mean_over_settings(rows.groupby([*CELL, "seed"])[column].max())
    if rate == "task":
        return mean_over_settings(rows.set_index([*CELL, "lr"])[column], ["lr"]).groupby(CELL[:2]).max()
    chosen = at_rate_of_task(rows, column) if rate == "task, for all mixers" else rows[rows["lr"] == 5e-3]
    return mean_over_settings(chosen.set_index(CELL)[column])


def mean_over_settings(scores: pd.Series, more: Sequence[str] = ()) -> pd.Series:
    """By mixer and task, and by `more` levels."""
    return scores.groupby([*CELL, *more]).mean().groupby([*CELL[:2], *more]).mean()


def at_rate_of_task(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows at the rate of their task that is best for all mixers together."""
    by_rate = mean_over_settings(rows.set_index([*CELL, "lr"])[column], ["lr"]).groupby(["task", "lr"]).mean()
    return rows[pd.MultiIndex.from_frame(rows[["task", "lr"]]).isin(by_rate.groupby("task").idxmax())]


def distance_text(ours: pd.Series, paper: pd.Series) -> str:
    """RMSE and Spearman's rank correlation."""
    _, rmse, spearman = distance(*({place: [mean] for place, mean in means.items()} for means in (ours, paper)))
    return f"{rmse:.3f}, {spearman:.2f}"


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


def ingredients(scratch: Path) -> None:
    """What single ingredients of a recipe change on each task, of the rows that the other folders have."""
    tasks = [task for task in TASKS if task in PAPER.over]
    lines, found = [], {}
    for (name, former), change in ingredient_changes().items():
        found[name] = {task: effect_of(own) for task, own in change.groupby("task")}
        texts = {task: f"{mean:+.3f} ± {half_width(units):.3f}" for task, (mean, units) in found[name].items()}
        seeds = change.groupby(level=CELL).size()
        lines.append(
            [
                *(name, former),
                *(texts.get(task, "") for task in tasks),
                ", ".join(in_order(change.index.unique("mixer"), MIXERS)),
                str(seeds.groupby(level=CELL[1:]).ngroups),
                f"{seeds.min()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}",
            ]
        )
    header = ["ingredient", "in place of", *tasks, "mixers", "settings", "seeds"]
    (RESULTS / "ingredients" / "effects.md").write_text(noted([header, *lines], 2, INGREDIENTS_NOTE))
    save(effects_figure(found, tasks), RESULTS / "ingredients" / "effects")


def effects_figure(found: Mapping[str, Mapping[str, Effect]], tasks: Sequence[str]) -> Figure:
    """A panel for each task: the effects by ingredient, over how far published tables are from their middle."""
    spread = {task: [] for task in tasks}
    for (name, _), (low, high, tables) in ranges(read_published().values()).items():
        if tables > 2 and not name.setting:
            spread[name.task].append((high - low) / 2)
    with figure_style():
        sheet = named_sheet(None, tasks, list(found), 0.7, 1.6)
        for panel, task in zip(sheet.panels, tasks, strict=True):
            half = fmean(spread[task])
            panel.axvspan(-half, half, color=BAND, linewidth=0)
            panel.axvline(0, color="0.5", linewidth=0.6)
            for y, effects_on in enumerate(found.values()):
                if task in effects_on:
                    mean, units = effects_on[task]
                    panel.errorbar(mean, y, xerr=half_width(units), fmt="o", **EFFECT)
            panel.set(xlim=(-0.4, 0.4), xticks=(-0.3, 0, 0.3), xlabel="change")
        told = "accuracy, mean over mixers; whiskers: 95% Student t interval over mixers or seeds, cut off at 0.4"
        handles = [Patch(facecolor=BAND, label="half the range of three or more published tables, mean over mixers")]
        return sheet.finish("What single ingredients change", told, handles, 0.16 * len(found), whole=True)


def ingredient_changes() -> dict[tuple[str, str], pd.Series]:
    """The change of accuracy by mixer, task, setting and seed, by ingredient and what it stands in place of."""
    table = rows_in("table", "rows.csv")
    table = table[table["task"].isin(PAPER.over) & table["lr"].isin(RATES)]
    default = at_best(table)
    one_rate = at_rate_of_task(table, "official_accuracy").set_index([*CELL, "seed"])["official_accuracy"]
    copying = default.xs("sc", level="task", drop_level=False)
    of_16 = copying.xs("baseline", level="setting").groupby("mixer").mean()
    more = copying.index.get_level_values("setting").str.startswith("num_tokens_to_copy")
    always_16 = copying.where(~more, of_16.reindex(copying.index.get_level_values("mixer")).array)
    screen = rows_in("screen")
    recipes = {key: at_best(rows) - default for key, rows in screen.groupby(["study", "recipe"])}
    factorial = screen[(screen["study"] == "factorial") & (screen["status"] == "finished")]
    factorial = factorial[factorial["mixer"] != "mamba"]  # which has no heads
    by_seed = {seed: effects(rows).set_index(CELL)["effect_B"] for seed, rows in factorial.groupby("seed")}
    eighths = pd.concat(by_seed, names=["seed"]).reorder_levels([*CELL, "seed"])
    zero_and_rotated = {key: at_best(rows) for key, rows in rows_in("arms").groupby(ARM)}
    adamw = at_best(rows_of(RESULTS / "adamw" / RECORDS), ADAMW_RATES)
    changes = {
        ("checkpoint and rate by validation", "by test"): at_best(table, of="clean_accuracy", by="clean_val_accuracy")
        - default,
        ("last epoch", "best checkpoint"): at_best(table, of="test_accuracy") - default,
        ("one rate a task for all mixers", "best rate"): one_rate - default,
        ("sc always copies 16 tokens", "16 to 96"): always_16 - copying,
        ("AdamW", "Muon"): adamw - default,
        ("1 head of 128", "2 of 64"): recipes["one choice changed", "1x128"],
        ("4 heads of 32", "2 of 64"): recipes["finalists", "4x32"],
        ("16 heads of 8, over 16 recipes", "2 of 64"): eighths,
        ("no norms of q, k, rho", "norms"): recipes["finalists", "plain"].drop("mamba"),
        ("PyTorch's initial values", "N(0, 0.02)"): recipes["finalists", "PyTorch's init"],
        ("rho rotated", "not rotated"): zero_and_rotated[True, True] - zero_and_rotated[True, False],
        ("W_R random", "W_R zero"): zero_and_rotated[False, False] - zero_and_rotated[True, False],
    }
    return {key: change.dropna() for key, change in changes.items()}


def at_best(
    rows: pd.DataFrame, rates: Sequence[float] = RATES, of: str = "official_accuracy", by: str = ""
) -> pd.Series:
    """The accuracy `of` each cell and seed at the rate that is best `by` another one, by itself if none is named.

    Only seeds that have all of the rates; a replica that diverged has the accuracy 0.
    """
    rows = rows[rows["lr"].isin(rates) & rows["status"].isin(["finished", "diverged"])]
    rows = rows.fillna({of: 0.0, (by or of): 0.0}).sort_values([by or of, "lr"])
    seeds = rows.groupby([*CELL, "seed"])
    return seeds[of].last()[seeds["lr"].nunique() == len(rates)]


def effect_of(change: pd.Series) -> Effect:
    """The mean over mixers of the means over settings, and what differs; `change`: by mixer, task, setting, seed.

    The interval is over the means of mixers or, of fewer than three, over mixers and seeds together.
    """
    by_mixer = mean_over_settings(change)
    units = by_mixer if len(by_mixer) > 2 else change.groupby(["mixer", "seed"]).mean()
    return by_mixer.mean(), list(units)


class Measured(NamedTuple):
    """A measure of `mixerlab analyse`: whose, in which layer (None: the mean over layers), after how many epochs."""

    mixer: str
    variant: str
    measure: str
    layer: int | None = None
    epochs: int = 60
    study: str = "optimizers"


MUON, ADAMW, COSINE, FIRST, LAST = "muon, wsd", "adamw, wsd", "adamw, cosine", 1, -1
Claim = tuple[str, int, Measured, Measured]


def claims() -> Iterator[Claim]:
    """What the paper says, which sign the difference should have (0: none), and the two measures that differ."""

    def larger(text: str, measure: str, less: str = ADAMW, mixer: str = "parallax") -> Claim:
        return text, 1, Measured(mixer, MUON, measure), Measured(mixer, less, measure)

    def beyond(text: str, sign: int, measure: str, optimizer: str, of_attention: str = "") -> Claim:
        attention = Measured("attn", optimizer, of_attention or measure)
        return f"{text} ({optimizer})", sign, Measured("parallax", optimizer, measure), attention

    for name in (MUON, ADAMW, COSINE):
        cor = Measured("parallax", name, "cor", LAST)
        yield f"COR grows with depth ({name})", 1, cor, cor._replace(layer=FIRST)
        change = f"{'exceeds' if name == MUON else 'barely recovers'} that of initial values"
        yield f"COR of the last layer {change} ({name})", int(name == MUON), cor, cor._replace(epochs=0)
        first = cor._replace(layer=FIRST)
        yield f"COR of the first layer falls from initial values ({name})", -1, first, first._replace(epochs=0)
    last = Measured("parallax", MUON, "cor", LAST)
    yield "COR of the last layer is larger with Muon than with AdamW", 1, last, last._replace(variant=ADAMW)
    for name, measure in (("the norm of Corr", "corr"), ("CPA", "cpa"), ("the norm of rho", "norm rho")):
        yield larger(f"{name} is larger with Muon", measure)
    for less in (ADAMW, COSINE):
        for name in ("W_R", "W_RK"):
            yield larger(f"srank {name} collapses ({less})", f"srank {name}", less)
    for mixer in ("attn", "parallax"):
        for name in ("W_Q", "W_K", "W_QK"):
            yield larger(f"srank {name} is larger with Muon ({mixer})", f"srank {name}", mixer=mixer)
    for optimizer in (MUON, ADAMW, COSINE):
        for name in ("W_Q", "W_K", "W_QK"):
            yield beyond(f"srank {name} is that of attention", 0, f"srank {name}", optimizer)
        for name in ("W_V", "W_O", "W_OV"):
            yield beyond(f"srank {name} is above that of attention", 1, f"srank {name}", optimizer)
        yield beyond("the sink in p is weaker than in attention", -1, "sink p", optimizer)
        yield beyond("the sink in s is weaker than in attention", -1, "sink s", optimizer, "sink p")
        yield beyond("the entropy of p is above attention's", 1, "entropy p", optimizer)
    for name, sign in (("muon", 1), ("adamw", -1)):
        gate = Measured("parallax", name, "gate", study="gate")
        yield f"the gate {'opens' if sign > 0 else 'closes'} ({name})", sign, gate, gate._replace(epochs=0)
    annealed = Measured("parallax", "", "norm W_R", study="wda")
    yield "annealed weight decay (gamma = 2) keeps the norm of W_R", 1, annealed, Measured("parallax", MUON, "norm W_R")


def analysis(scratch: Path) -> None:
    """The figures and tables of `mixerlab analyse` from its rows, and the paper's claims; not the score maps."""
    folder = RESULTS / "analysis"
    frames = {
        path.name.partition(".")[0]: pd.read_csv(path, dtype={"variant": str}).fillna({"variant": ""})
        for path in sorted(folder.glob("*.csv.xz"))
    }
    write_analysis(frames["optimizers"], scratch)
    for name in ("correction.png", "scores.png", "training.png", "stable_ranks.md"):
        shutil.copyfile(scratch / name, folder / name)
    rows = pd.concat(frames, names=["study"]).reset_index("study")
    (folder / "claims.md").write_text(claims_of_paper(rows[rows["moment"] != "official"], CLAIMS_NOTE))


def claims_of_paper(rows: pd.DataFrame, note: str) -> str:
    """The claims of which `rows` have both sides."""
    tasks = in_order(rows["task"], TASKS)
    lines = [["claim of the paper", *tasks, "mean of the tasks", "verdict"]]
    for text, sign, one, other in claims():
        difference = (by_task_and_seed(rows, one) - by_task_and_seed(rows, other)).dropna()
        if difference.empty:
            continue
        by_task = [list(difference.get(task, ())) for task in tasks]
        mean = list(difference.groupby("seed").mean())
        half, middle = half_width(mean), fmean(mean)
        found = 0 if abs(middle) <= half else 1 if middle > 0 else -1
        verdict = ("open", "holds", "contrary")[found * sign] if sign else ("none found", "differs", "differs")[found]
        shown = [f"{fmean(own):+.3g} ± {half_width(own):.2g}" if len(own) > 1 else "" for own in (*by_task, mean)]
        lines.append([text, *shown, verdict])
    if len(tasks) == 1:
        lines = [[line[0], *line[2:]] for line in lines]
        lines[0][1] = "difference"
    return noted(lines, 1, note)


def by_task_and_seed(rows: pd.DataFrame, one: Measured) -> pd.Series:
    """The measure of each run."""
    one = one._replace(layer=rows["layer"].max()) if one.layer == LAST else one
    for key, value in one._asdict().items():
        rows = rows[rows[key] == value] if value is not None else rows
    return rows.groupby(["task", "seed"])["mean"].mean()


def text(scratch: Path) -> None:
    """Language models that `study.py` trains: a part whose runs are not there has no file.

    Its runs are told by what only they have: the search its seed, the plain ones several seeds.
    """
    folder = RESULTS / "text"
    rows = rows_of(folder / RECORDS)
    searched, converted = rows["seed"] == SEARCH_SEED, rows["model.start_from"].notna()
    several = rows.groupby("run_id")["seed"].transform("nunique") > 1
    whole = rows[several & ~searched & ~converted]
    plain, going_on = at_better_rate(whole), at_better_rate(rows[converted])
    going_on = going_on[going_on["model.start_from"].isin(plain["run_id"])]
    made = {
        "rates": rates_of_text(rows[searched]),
        "bits_per_byte": bits_table(plain),
        "controls": controls_table(rows[~several & ~searched], plain),
        "conversion": conversion_table(going_on, plain),
    }
    for name, table_of in made.items():
        if table_of:
            (folder / f"{name}.md").write_text(table_of)
    inside = pd.read_csv(folder / "inside.csv.xz")
    write_analysis(inside, scratch)
    for name in ("correction.png", "scores.png", "stable_ranks.md"):
        shutil.copyfile(scratch / name, folder / name)
    inside = inside.assign(study="optimizers", epochs=60, variant=inside["variant"] + ", wsd")
    (folder / "claims.md").write_text(claims_of_paper(inside, TEXT_CLAIMS_NOTE))
    if len(plain):
        save(text_curves(plain, curves(folder / RECORDS)), folder / "curves")


def at_better_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each mixer and optimizer the rows at the rate that is better on validation, on the mean of its seeds."""
    means = rows.groupby(["mixer", "optimizer", "lr"])["clean_val_bits_per_byte"].mean()
    return rows[pd.MultiIndex.from_frame(rows[["mixer", "optimizer", "lr"]]).isin(means.groupby(level=[0, 1]).idxmin())]


def rates_of_text(rows: pd.DataFrame) -> str:
    scores = rows.pivot(index=["optimizer", "mixer"], columns="lr", values="clean_val_bits_per_byte")
    lines = [["mixer", "optimizer", *(f"{rate:g}" for rate in scores)]]
    for optimizer, mixer in product(TEXT_OPTIMIZERS, OF_TEXT):
        if (optimizer, mixer) in scores.index:
            own = scores.loc[optimizer, mixer]
            tried = own.dropna()
            best, edges = tried.idxmin(), (tried.index[0], tried.index[-1])
            texts = {rate: f"{score:.3f}" for rate, score in tried.items()}
            texts[best] = f"**{texts[best]}**{'†' if best in edges else ''}"
            lines.append([mixer, TEXT_OPTIMIZERS[optimizer], *(texts.get(rate, "") for rate in own.index)])
    return noted(lines, 2, TEXT_RATES_NOTE) if lines[1:] else ""


def bits_table(plain: pd.DataFrame) -> str:
    """The means of each mixer, and the differences of attention and Parallax from each other and from the others."""
    cells = {cell: list(own) for cell, own in plain.groupby(["mixer", "optimizer"])[BITS]}
    sizes = plain.groupby("mixer")["num_params"].first()
    lines = [["mixer", "parameters", *TEXT_OPTIMIZERS.values()]]
    for mixer in in_order(sizes.index, OF_TEXT):
        own = [cells.get((mixer, optimizer), []) for optimizer in TEXT_OPTIMIZERS]
        texts = [mean_change(one, ".4f") + ("" if len(one) == 3 else f" ({len(one)})") if one else "" for one in own]
        lines.append([mixer, f"{sizes[mixer]:,.0f}", *texts])
    below = [["difference", *TEXT_OPTIMIZERS.values(), "Muon less AdamW"]]
    for more, less in [("parallax", "attn"), *product(("attn", "parallax"), OF_TEXT[2:])]:
        sides = [(cells.get((more, of)), cells.get((less, of))) for of in TEXT_OPTIMIZERS]
        texts = [difference_of_sums([one], [other], 4) if one and other else "" for one, other in sides]
        if any(texts):
            (one, other), (last, first) = sides
            texts.append(difference_of_sums([one, first], [other, last], 4) if all(texts) else "")
            below.append([f"{more} less {less}", *texts])
    return noted(lines, 1, BITS_NOTE) + "\n" + noted(below, 1, DIFFERENCES_NOTE) if lines[1:] else ""


def controls_table(controls: pd.DataFrame, plain: pd.DataFrame) -> str:
    """What each control changes, beside the plain run of its seed."""
    by_place = plain.set_index(["mixer", "optimizer", "seed"])
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for _, run in controls.iterrows():
        place = run["mixer"], run["optimizer"], run["seed"]
        if place in by_place.index:
            beside = by_place.loc[place]
            name = run["mixer"], changed_keys(run, beside), f"{run['num_params']:,.0f}"
            found.setdefault(name, {})[run["optimizer"]] = f"{run[BITS] - beside[BITS]:+.4f}"
    lines = [["mixer", "control", "parameters", *TEXT_OPTIMIZERS.values()]]
    for name in sorted(found, key=lambda one: (OF_TEXT.index(one[0]), one)):
        lines.append([*name, *(found[name].get(of, "") for of in TEXT_OPTIMIZERS)])
    pair = plain[plain["mixer"].isin(["attn", "parallax"])]
    spread = pair.groupby(["optimizer", "mixer"])[BITS].var().groupby("optimizer").mean() ** 0.5
    told = ", ".join(f"{spread[of]:.4f} ({name})" for of, name in TEXT_OPTIMIZERS.items() if of in spread)
    return noted(lines, 2, CONTROLS_NOTE.format(told)) if lines[1:] else ""


def changed_keys(run: pd.Series, beside: pd.Series) -> str:
    """What differs in mixer, model, schedule and rate; another schedule's own keys are not told."""
    more = ("lr", "schedule", "schedule.gamma")
    keys = [key for key in run.index if key.startswith(("mixer.", "model.")) or key in more]
    values = {key: as_yaml(run[key]) for key in keys if as_yaml(run[key]) != as_yaml(beside[key])}
    return ", ".join(f"`{key}={value}`" for key, value in values.items() if value != "null")


def conversion_table(converted: pd.DataFrame, plain: pd.DataFrame) -> str:
    if converted.empty:
        return ""
    seeds = converted.pivot(index="seed", columns=["mixer", "optimizer"], values=BITS)
    rates = converted.groupby(["mixer", "optimizer"])["lr"].first()
    lines = [["trained on as", *TEXT_OPTIMIZERS.values(), "Muon less AdamW"]]
    sides = {mixer: seeds[mixer] for mixer in OF_TEXT[:2] if mixer in seeds}
    if len(sides) == 2:
        sides["parallax less attn"] = (sides["parallax"] - sides["attn"]).dropna(axis=1, how="all")
    for name, own in sides.items():
        form = "+.4f" if name not in seeds else ".4f"
        texts = [mean_change(list(own[of].dropna()), form) if of in own else "" for of in TEXT_OPTIMIZERS]
        texts = [
            f"{one} ({rates[name, of]:g})" if (name, of) in rates else one
            for of, one in zip(TEXT_OPTIMIZERS, texts, strict=True)
        ]
        change = mean_change(list((own["muon"] - own["adamw"]).dropna()), "+.4f") if all(texts) else ""
        lines.append([name, *texts, change])
    start = plain.loc[plain["run_id"].isin(converted["model.start_from"]), "official_bits_per_byte"]
    return noted(lines, 1, CONVERSION_NOTE.format(start.min()))


def text_curves(plain: pd.DataFrame, metrics: pd.DataFrame) -> Figure:
    """A panel for each optimizer: the score on test by tokens, mean and range over seeds."""
    metrics = metrics[metrics["run_id"].isin(plain["run_id"])]
    look = styles(map(Column, plain["mixer"].unique()))
    look = {Column(mixer): look[Column(mixer)] for mixer in OF_TEXT if Column(mixer) in look}
    with figure_style():
        sheet = Sheet(None, list(TEXT_OPTIMIZERS.values()))
        for panel, optimizer in zip(sheet.panels, TEXT_OPTIMIZERS, strict=True):
            for column, style in look.items():
                own = metrics[(metrics["optimizer"] == optimizer) & (metrics["mixer"] == column.mixer)]
                if len(own):
                    values = by_replica(own, "test_bits_per_byte", own["replica"].unique())
                    draw_curves(panel, values, style.colour, marker=style.marker)
            show_epochs(panel, tokens=True)
        sheet.panels[0].set_ylabel("bits per byte on test")
        return sheet.finish("Language models of text", SEEDS, line_handles(look), 2.4)


MAKERS: dict[str, Callable[[Path], None]] = {
    maker.__name__: maker
    for maker in (table, challenge, adamw, arms, analysis, board, frontier, parity, screen, ingredients, text)
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
