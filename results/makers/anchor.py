"""mad-lab's recipe and MesaNet's, trained by this harness, beside the published tables that used them."""

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
    mesanet = rows[rows["schedule"] == "cosine"]
    rows["mixer"] += rows["mixer.num_heads"].map(", {:.0f} heads".format, na_action="ignore").fillna("")
    madlab = rows[rows["schedule"] == "constant"]
    decays = {f"weight decay {key:g}": common.best_of_seeds(own, RATES) for key, own in madlab.groupby("weight_decay")}
    (folder / "accuracy.md").write_text(common.recipe_table(decays))
    common.write_in_page(folder, "means", means_table(decays["weight decay 0"].xs(0, level="seed")["accuracy"]))
    plain = madlab[(madlab["weight_decay"] == 0) & (madlab["seed"] == 0)]
    common.write_in_page(folder, "rates", rates_table(plain))
    common.write_in_page(folder, "mesanet", mesanet_table(mesanet))


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
    """Means of MesaNet's recipe, in brackets less the published ones, and the RMSE of these.

    At one rate of its grid, at each setting's best of the rates tried up to there unless that is the same, and above.
    """
    cell = ["task", "embedding", "weight_decay", "mixer"]
    at_rates = rows.groupby([*cell, "setting", "lr"])["official_accuracy"].mean().reset_index("lr")
    rates = at_rates.pop("lr")
    chosen = {
        "3e-3": at_rates[rates == MESANETS_LARGEST],
        "best to 3e-3": at_rates[rates <= MESANETS_LARGEST],
        "1e-2": at_rates[rates > MESANETS_LARGEST],
    }
    best = pd.concat(chosen, names=["rates"]).groupby(level=["rates", *cell, "setting"])["official_accuracy"].max()
    means = best.groupby(level=[*cell, "rates"]).mean()
    paper = read_published()["mesanet"].numbers
    less = means - [paper[task, "", mixer] for task, *_, mixer, _ in means.index]
    table = (means.map("{:.3f}".format) + less.map(" ({:+.3f})".format)).unstack("mixer").fillna("")
    table["RMSE"] = (less**2).groupby(level=table.index.names).mean().pow(0.5).map("{:.3f}".format)
    is_same = table.droplevel("rates").reset_index().duplicated()
    return table[~is_same.to_numpy()]


def mean_and_count(accuracy: pd.Series) -> str:
    return f"{accuracy.mean():.3f} ({(accuracy > 0.9).sum()}/{len(accuracy)})"
