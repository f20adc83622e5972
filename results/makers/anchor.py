"""mad-lab's recipe, trained by this harness, beside two published tables that used it; MesaNet's on one task."""

from pathlib import Path

import pandas as pd
from makers import common

from mixerlab.sweeps.tables.published import read_published

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
    common.write_in_page(folder, "means", means_table(decays["weight decay 0"].xs(0, level="seed")["accuracy"]))
    plain = madlab[(madlab["weight_decay"] == 0) & (madlab["seed"] == 0)]
    common.write_in_page(folder, "rates", rates_table(plain))
    common.write_in_page(folder, "mesanet", mesanet_table(rows[rows["schedule"] == "cosine"]))


def means_table(accuracy: pd.Series) -> pd.DataFrame:
    """By task and mixer the mean over settings, how many of them reach 0.9, and the mean less published ones."""
    by_task = accuracy.groupby(["mixer", "task"])
    means = by_task.mean()
    texts = by_task.agg(mean_and_count)
    table = pd.DataFrame(index=pd.Index([*TASKS, "RMSE"], name="task"))
    for mixer, beside in BESIDE.items():
        table[mixer] = texts[mixer]
        for key in beside:
            name, theirs = f"{mixer} less {TABLES[key]}", read_published()[key].numbers[:, "", mixer.partition(",")[0]]
            change = (means[mixer] - theirs)[list(TASKS)]
            table[name] = change.map("{:+.3f}".format)
            table.loc["RMSE", name] = f"{(change**2).mean() ** 0.5:.3f}"
    return table


def rates_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean over settings, by task, mixer and rate, and at each setting's best rate, of what has rates above."""
    cells = rows.pivot_table("official_accuracy", common.CELL, "lr").rename(columns="{:g}".format)
    cells = cells[cells.notna().sum(axis=1) > len(RATES)].assign(**{"best of each setting": cells.max(axis=1)})
    means = cells.groupby(["task", "mixer"]).mean()
    return means.map("{:.3f}".format, na_action="ignore")


def mesanet_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The published means, and those of MesaNet's recipe: at each setting's best rate of its grid, or above.

    In brackets how many settings reach 0.9. A mean over fewer settings than the paper's is left out.
    """
    paper = read_published()["mesanet"]
    above = rows["lr"].map(", {:g}".format).where(rows["lr"] > MESANETS_LARGEST, "")
    best = rows.groupby(["task", "mixer", rows["embedding"] + above, "setting"])["official_accuracy"].max()
    best = best.groupby(level=[0, 1, 2]).filter(lambda own: len(own) == len(paper.over[own.index[0][0]]))
    means = best.groupby(level=[0, 1, 2]).agg(mean_and_count).unstack().fillna("")
    theirs = [paper.numbers[task, "", name.partition(",")[0]] for task, name in means.index]
    means.insert(0, "MesaNet paper", [f"{mean:.3f}" for mean in theirs])
    return means


def mean_and_count(accuracy: pd.Series) -> str:
    return f"{accuracy.mean():.3f} ({(accuracy > 0.9).sum()}/{len(accuracy)})"
