"""Mixers by optimizers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from makers import common
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from mixerlab.records.names import place_rank
from mixerlab.sweeps.figures.difficulty import setting_title
from mixerlab.sweeps.figures.heat_map import NO_SCORE
from mixerlab.sweeps.figures.sheet import Sheet, figure_style, save
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.writers import in_place_order, markdown

SEARCH_NOTE = """\
Mean validation accuracy over the three mixers and both tasks at the checkpoint of the lowest validation perplexity, one
seed; what diverged counts as 0. Bold: the best rate and the better of its neighbours, which the board has."""


def make(folder: Path, scratch: Path) -> None:
    """Mixers by optimizers, what Parallax gains over attention with each, and the search for the rates."""
    common.copy_report(folder, ["official/solved.md"], scratch, "rows.csv")
    rows = rows_of(folder / "rows.csv")
    seeds = {name: common.best_of_seeds(own, sorted(own["lr"].unique())) for name, own in rows.groupby("optimizer")}
    (folder / "accuracy.md").write_text(common.recipe_table(seeds))
    save(steps_figure(rows), folder / "steps")
    for mixer in ("parallax", "gdn"):
        common.write_in_page(folder, f"{mixer} less attention", gains_table(seeds, mixer))
    (folder / "rates.md").write_text(markdown(search_table(common.rows_in("board", "search.csv")), SEARCH_NOTE))


def gains_table(seeds: Mapping[str, pd.DataFrame], mixer: str) -> pd.DataFrame:
    """What a mixer gains over attention with each optimizer, by setting."""
    accuracy = pd.concat(seeds, axis=1).xs("accuracy", axis=1, level=1)
    gains = accuracy.xs(mixer) - accuracy.xs("attn")
    table = gains.groupby(common.PLACE).agg(common.mean_change, usual=3)
    return in_place_order(table)


def search_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean score by optimizer and rate; in bold the best and the better of its neighbours."""
    scores = rows["clean_val_accuracy"].where(rows["status"] == "finished", 0.0)
    means = scores.groupby([rows["optimizer"], rows["lr"]]).mean().unstack()
    texts = means.map("{:.3f}".format)
    for optimizer, own in means.iterrows():
        best = own.argmax()
        chosen = own.iloc[max(best - 1, 0) : best + 2].nlargest(2).index
        texts.loc[optimizer, chosen] = "**" + texts.loc[optimizer, chosen] + "**"
    return texts.rename(columns="{:g}".format)


def steps_figure(rows: pd.DataFrame) -> Figure:
    """The median steps to a test accuracy of 0.9 of a cell's replicas; one that never got there is infinitely late."""
    keys = ["mixer", "optimizer", "task", "setting"]
    steps = rows.fillna({"steps_to_90": np.inf}).groupby(keys)["steps_to_90"].median().unstack(["task", "setting"])
    steps = steps[sorted(steps, key=place_rank)]
    with figure_style():
        sheet = Sheet(None, [""], widest=6.0, beside=0.9)
        (panel,) = sheet.panels
        panel.grid(False)
        panel.patch.set(**NO_SCORE)
        solved = np.log10(steps.where(np.isfinite(steps)))
        # Light grey where it never got there, the hatched ground where nothing was run.
        panel.imshow(np.where(steps.notna(), 0.9, np.nan), cmap="Greys", vmin=0.8, vmax=2, aspect="auto")
        panel.imshow(solved, cmap="cividis_r", aspect="auto", vmin=1, vmax=4)
        for row, column in np.argwhere(steps.notna()):
            value = steps.iloc[row, column]
            text, ink = ("never", "0.15") if np.isinf(value) else (f"{value:,.0f}", "white" if value > 600 else "0.15")
            panel.text(column, row, text, ha="center", va="center", color=ink, fontsize=6)
        panel.set(xticks=range(steps.shape[1]), xticklabels=[setting_title(*cell) for cell in steps])
        panel.set(yticks=range(len(steps)), yticklabels=[", ".join(name) for name in steps.index])
        handles = [Patch(label="not run", linewidth=0, **NO_SCORE)]
        told = "median of six replicas; never: at most half of them got there"
        return sheet.finish("Steps to a test accuracy of 0.9", told, handles, 0.17 * len(steps), whole=True)
