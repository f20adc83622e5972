"""mad-lab's recipe, trained by this harness, beside two published tables that used it; MesaNet's on one task."""

from pathlib import Path

import numpy as np
import pandas as pd
from makers import common

from mixerlab.sweeps.tables.published import Name, read_published

RATES = (1e-4, 5e-4, 1e-3)
MESANETS_LARGEST = 3e-3
TABLES = {"deltanet": "DeltaNet paper", "lin-attn-bench": "lin-attn-bench"}
# lin-attn-bench's mamba has four layers without MLP.
BESIDE = {"attn, 16 heads": TABLES.keys(), "attn, 2 heads": TABLES.keys(), "mamba": ["deltanet"]}
TASKS = ("icr", "ncr", "mem")


def make(folder: Path, scratch: Path) -> None:
    rows = common.rows_in("anchor")
    rows["mixer"] += rows["mixer.num_heads"].map(", {:.0f} heads".format, na_action="ignore").fillna("")
    madlab = rows[rows["schedule"] == "constant"]
    decays = {f"weight decay {key:g}": common.best_of_seeds(own, RATES) for key, own in madlab.groupby("weight_decay")}
    (folder / "accuracy.md").write_text(common.recipe_table(decays))
    means = means_lines(decays["weight decay 0"].xs(0, level="seed")["accuracy"])
    common.write_in_page(folder, "means", means, 1)
    plain = madlab[(madlab["weight_decay"] == 0) & (madlab["seed"] == 0)]
    common.write_in_page(folder, "rates", rates_lines(plain), 2)
    common.write_in_page(folder, "mesanet", mesanet_lines(rows[rows["schedule"] == "cosine"]), 1)


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
            theirs = [numbers[Name(task), mixer.partition(",")[0]] for task in TASKS]
            changes = [means[cell] - number for cell, number in zip(cells, theirs, strict=True)]
            rmse = (sum(change**2 for change in changes) / len(changes)) ** 0.5
            columns[f"{mixer} less {TABLES[key]}"] = [*(f"{change:+.3f}" for change in changes), f"{rmse:.3f}"]
    return [["task", *columns], *map(list, zip([*TASKS, "RMSE"], *columns.values(), strict=True))]


def rates_lines(rows: pd.DataFrame) -> list[list[str]]:
    """The mean over settings, by task, mixer and rate, and at each setting's best rate, of what has rates above."""
    cells = rows.pivot_table("official_accuracy", ["task", "mixer", "setting"], "lr")
    cells = cells[cells.notna().sum(axis=1) > len(RATES)].assign(best=cells.max(axis=1))
    means = cells.groupby(level=["task", "mixer"]).mean()
    lines = [[*place, *("" if np.isnan(mean) else f"{mean:.3f}" for mean in own)] for place, own in means.iterrows()]
    return [["task", "mixer", *(f"{rate:g}" for rate in means.columns[:-1]), "best of each setting"], *lines]


def mesanet_lines(rows: pd.DataFrame) -> list[list[str]]:
    """The published mean on `mem`, and those of MesaNet's recipe: at each setting's best rate of its grid, or above."""
    above = rows["lr"].map(", {:g}".format).where(rows["lr"] > MESANETS_LARGEST, "")
    best = rows.groupby(["mixer", rows["embedding"] + above, "setting"])["official_accuracy"].max()
    means = best.groupby(level=[0, 1]).mean().unstack()
    published = read_published()["mesanet"].numbers
    means.insert(0, "MesaNet paper", [published[Name("mem"), name.partition(",")[0]] for name in means.index])
    lines = [[mixer, *("" if np.isnan(mean) else f"{mean:.3f}" for mean in own)] for mixer, own in means.iterrows()]
    return [["mixer", *means], *lines]
