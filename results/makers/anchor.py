"""mad-lab's recipe, trained by this harness, beside two published tables that used it; MesaNet's on one task."""

import math
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
LARGE = ("vocab_size-4096", "vocab_size-8192")


def make(scratch: Path) -> None:
    folder = common.folder_of("anchor")
    rows = common.rows_in("anchor")
    rows["mixer"] += rows["mixer.num_heads"].map(", {:.0f} heads".format, na_action="ignore").fillna("")
    madlab = rows[rows["schedule"] == "constant"]
    by_decay = madlab[madlab["device"] != "cpu"].groupby("weight_decay")
    decays = {f"weight decay {key:g}": common.best_of_seeds(own, RATES) for key, own in by_decay}
    (folder / "accuracy.md").write_text(common.recipe_table(decays))
    accuracy = decays["weight decay 0"].xs(0, level="seed")["accuracy"]
    common.write_in_page(folder, "means", means_lines(accuracy), 1)
    small = accuracy.xs(("attn, 2 heads", "mem"), level=["mixer", "task"]).drop(list(LARGE))
    common.write_in_page(folder, "memorization", rates_lines(madlab, small), 2)
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


def rates_lines(rows: pd.DataFrame, small: pd.Series) -> list[list[str]]:
    """Attention on the larger vocabularies of `mem` by batch size and rate, also at rates that mad-lab has not.

    The mean over the task has the accuracies on `small` vocabularies as they are in the other table.
    """
    rows = rows[(rows["mixer"] == "attn, 2 heads") & rows["setting"].isin(LARGE) & (rows["weight_decay"] == 0)]
    scores = rows.set_index(["batch_size", "device", "lr", "setting"])["official_accuracy"].unstack().sort_index()
    lines = [["batch", "trained on", "rate", *LARGE, "mean of `mem`"]]
    for (batch, device, rate), row in scores.iterrows():
        numbers = [*row[list(LARGE)], (small.sum() + row.sum(skipna=False)) / (len(small) + len(row))]
        texts = ["" if math.isnan(number) else f"{number:.3f}" for number in numbers]
        lines.append([str(batch), device, f"{rate:g}", *texts])
    return lines


def mesanet_lines(rows: pd.DataFrame) -> list[list[str]]:
    """MesaNet's recipe on `mem`, with the embedding for the last layer too or not."""
    keys = ["mixer", "model.tie_embeddings", "lr"]
    scores = rows.set_index([*keys, "setting"])["official_accuracy"].unstack()
    cells = sorted(scores, key=lambda setting: place_rank(("mem", setting)))
    lines = [["mixer", "tied", "rate", *cells, "mean"]]
    for (mixer, tied, rate), row in scores.sort_index(ascending=False).iterrows():
        numbers = [*row[cells], row.mean(skipna=False)]
        texts = ["" if math.isnan(number) else f"{number:.3f}" for number in numbers]
        lines.append([mixer, "yes" if tied else "no", f"{rate:g}", *texts])
    return lines
