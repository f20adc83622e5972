"""mad-lab's recipe, trained by this harness, beside two published tables that used it; MesaNet's on one task."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from makers import common

from mixerlab.records.names import place_rank
from mixerlab.sweeps.tables.published import Name, read_published

RATES = (1e-4, 5e-4, 1e-3)
TABLES = {"deltanet": "DeltaNet paper", "lin-attn-bench": "lin-attn-bench"}
# lin-attn-bench's mamba has four layers without MLP.
BESIDE = {"attn, 16 heads": TABLES.keys(), "attn, 2 heads": TABLES.keys(), "mamba": ["deltanet"]}
TASKS = ("icr", "ncr", "mem")


def make(scratch: Path) -> None:
    folder = common.folder_of("anchor")
    rows = common.rows_in("anchor")
    rows["mixer"] += rows["mixer.num_heads"].map(", {:.0f} heads".format, na_action="ignore").fillna("")
    madlab = rows[rows["schedule"] == "constant"]
    decays = {f"weight decay {key:g}": common.best_of_seeds(own, RATES) for key, own in madlab.groupby("weight_decay")}
    (folder / "accuracy.md").write_text(common.recipe_table(decays))
    means = means_lines(decays["weight decay 0"].xs(0, level="seed")["accuracy"])
    common.write_in_page(folder, "means", means, 1)
    plain = madlab[(madlab["weight_decay"] == 0) & (madlab["seed"] == 0)].rename(columns={"lr": "rate"})
    common.write_in_page(folder, "memorization", rates_lines(plain, ["mixer", "rate"]), 2)
    common.write_in_page(folder, "mesanet", mesanet_lines(rows[rows["schedule"] == "cosine"]), 2)


def means_lines(accuracy: pd.Series) -> list[list[str]]:
    """By task and mixer the mean over settings, how many of them reach 0.9, and the mean less published ones."""
    by_task = accuracy.groupby(["mixer", "task"])
    means, reached = by_task.mean(), (accuracy > 0.9).groupby(["mixer", "task"]).agg(["sum", "size"])
    columns = {}
    for mixer, beside in BESIDE.items():
        cells = [(mixer, task) for task in TASKS]
        columns[mixer] = [f"{means[cell]:.3f} ({'/'.join(map(str, reached.loc[cell]))})" for cell in cells] + [""]
        for key in beside:
            numbers = read_published()[key].numbers
            theirs = [numbers[Name(task), mixer.partition(",")[0]][0] for task in TASKS]
            changes = [means[cell] - number for cell, number in zip(cells, theirs, strict=True)]
            rmse = (sum(change**2 for change in changes) / len(changes)) ** 0.5
            columns[f"{mixer} less {TABLES[key]}"] = [*(f"{change:+.3f}" for change in changes), f"{rmse:.3f}"]
    return [["task", *columns], *map(list, zip([*TASKS, "RMSE"], *columns.values(), strict=True))]


def rates_lines(rows: pd.DataFrame, keys: Sequence[str]) -> list[list[str]]:
    """The accuracy on each setting of `mem` and their mean, by these `keys` of the rows."""
    scores = rows[rows["task"] == "mem"].groupby([*keys, "setting"])["official_accuracy"].max().unstack()
    cells = sorted(scores, key=lambda setting: place_rank(("mem", setting)))
    lines = [[*keys, *cells, "mean"]]
    for key, row in scores.iterrows():
        lines.append([*map(str, key), *(f"{number:.3f}" for number in (*row[cells], row.mean(skipna=False)))])
    return lines


def mesanet_lines(rows: pd.DataFrame) -> list[list[str]]:
    """MesaNet's recipe on `mem`, at each setting's best rate, and its mean less the published one."""
    rows = rows.assign(tied=rows["model.tie_embeddings"].map({True: "yes", False: "no"}))
    header, *lines = rates_lines(rows, ["mixer", "tied"])
    published = read_published()["mesanet"].numbers
    changes = [float(line[-1]) - published[Name("mem"), line[0].partition(",")[0]][0] for line in lines]
    told = [[*line, f"{change:+.3f}"] for line, change in zip(lines, changes, strict=True)]
    return [[*header, "less MesaNet paper"], *told]
