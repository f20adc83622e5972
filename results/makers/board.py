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
        common.write_in_page(folder, f"{mixer} less attention", gains_lines(seeds, mixer), 2)
    searched = common.rows_in("board", "search.csv")
    searched = searched.assign(score=searched["clean_val_accuracy"].where(searched["status"] == "finished", 0.0))
    means = searched.groupby(["optimizer", "lr"])["score"].mean().unstack()
    lines = [["optimizer", *(f"{rate:g}" for rate in means)]]
    for name, own in means.iterrows():
        best = own.argmax()
        chosen = {best, max({best - 1, best + 1} & {*range(len(own))}, key=lambda place: own.iloc[place])}
        lines.append([name, *(f"**{x:.3f}**" if i in chosen else f"{x:.3f}" for i, x in enumerate(own))])
    (folder / "rates.md").write_text(common.noted(lines, 1, SEARCH_NOTE))


def gains_lines(seeds: Mapping[str, pd.DataFrame], mixer: str) -> list[list[str]]:
    """What a mixer gains over attention with each optimizer, by setting."""
    gains = {name: common.gain_of(own, mixer) for name, own in seeds.items()}
    by_cell = pd.concat(gains, names=["optimizer"]).dropna().unstack("optimizer").groupby(["task", "setting"])
    lines = [["task", "setting", *gains]]
    for cell, own in sorted(by_cell, key=lambda one: place_rank(one[0])):
        lines.append([*cell, *(common.mean_change(own[name].dropna(), usual=3) for name in gains)])
    return lines


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
        for (row, column), value in np.ndenumerate(steps.to_numpy()):
            if not np.isnan(value):
                text = f"{value:,.0f}" if np.isfinite(value) else "never"
                dark = np.isfinite(value) and value > 600
                panel.text(column, row, text, ha="center", va="center", color="white" if dark else "0.15", fontsize=6)
        panel.set(xticks=range(steps.shape[1]), xticklabels=[setting_title(*cell) for cell in steps])
        panel.set(yticks=range(len(steps)), yticklabels=[", ".join(name) for name in steps.index])
        handles = [Patch(label="not run", linewidth=0, **NO_SCORE)]
        told = "median of six replicas; never: at most half of them got there"
        return sheet.finish("Steps to a test accuracy of 0.9", told, handles, 0.17 * len(steps), whole=True)
