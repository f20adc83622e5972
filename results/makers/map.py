"""The Parallax paper's map of mechanisms, measured: the questions were written before the runs.

A bare MesaNet is without what linear attention does not have either, and stands for its place in the map.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from makers import common
from makers.common import PLACE
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mixerlab.records.names import place_rank
from mixerlab.sweeps.figures.difficulty import setting_title
from mixerlab.sweeps.figures.sheet import Sheet, figure_style, save
from mixerlab.sweeps.tables.writers import markdown

DIFFERENCES_NOTE = """\
Accuracy of the first less that of the second, mean over seeds ± half of Student's 95% interval."""
OPTIMIZERS = {"muon": ("Muon", common.MUON_RATES, "#D55E00"), "adamw": ("AdamW", common.ADAMW_RATES, "#0072B2")}
BARE, NEGATIVE = ", bare", ", negative eigenvalues"
PLACES = [
    *("attn", "parallax", "lla"),
    *("value_average", "affine_linear", "affine_mesa" + BARE),
    *("", "linear", "mesa" + BARE),
]
QUESTIONS = {
    "the learned probe": [("parallax", "attn"), ("affine_linear", "value_average")],
    "the solve": [("lla", "parallax"), ("affine_mesa" + BARE, "affine_linear"), ("mesa" + BARE, "linear")],
    "the intercept": [
        ("affine_linear", "linear"),
        ("affine_mesa" + BARE, "mesa" + BARE),
        ("affine_mesa", "mesa"),
        ("affine_delta", "deltanet"),
    ],
}


def make(folder: Path, scratch: Path) -> None:
    rows = map_rows()
    # Settings that one optimizer only has are of the prediction.
    rows = rows[rows.groupby(PLACE)["optimizer"].transform("nunique") == len(OPTIMIZERS)]
    seeds = {
        name: common.best_of_seeds(rows[rows["optimizer"] == key], rates, "clean")
        for key, (name, rates, _) in OPTIMIZERS.items()
    }
    (folder / "accuracy.md").write_text(common.recipe_table(seeds))
    accuracy = pd.concat(seeds, names=["optimizer"])["accuracy"].unstack("mixer")
    pairs = [(question, *pair) for question, pairs in QUESTIONS.items() for pair in pairs]
    changes = pd.DataFrame({pair: accuracy[pair[1]] - accuracy[pair[2]] for pair in pairs})
    common.write_in_page(folder, "questions", questions_table(changes))
    (folder / "differences.md").write_text(markdown(differences_table(changes), DIFFERENCES_NOTE))
    save(map_figure(accuracy), folder / "map")


def map_rows() -> pd.DataFrame:
    """The rows, whose mixers are named by what they are."""
    rows = common.rows_in("map")
    bare = rows["mixer"].isin(["mesa", "affine_mesa"]) & rows["mixer.ungated"].eq(True)
    rows["mixer"] += bare.map({True: BARE, False: ""})
    rows["mixer"] += rows["mixer.allow_neg_eigval"].eq(True).map({True: NEGATIVE, False: ""})
    return rows


def questions_table(changes: pd.DataFrame) -> pd.DataFrame:
    """The mean over the settings of which both mechanisms have all seeds, and in brackets how many these are."""
    lines = {}
    for pair, change in changes.items():
        seeds = {name: own.unstack("seed").dropna() for name, own in change.groupby("optimizer", sort=False)}
        means = {name: list(own.mean()) for name, own in seeds.items()}
        lines[pair] = {name: f"{common.mean_change(own)} ({len(seeds[name])})" for name, own in means.items()}
        lines[pair]["Muon less AdamW"] = common.difference_of_means(*means.values())
    return pd.DataFrame.from_dict(lines, "index").rename_axis(["what helps?", "first", "second"])


def differences_table(changes: pd.DataFrame) -> pd.DataFrame:
    """The differences of all questions by setting."""
    texts = changes.groupby(["optimizer", *PLACE], sort=False).agg(common.mean_change, usual=3)
    texts.columns = pd.Index([f"{first} less {second}" for _, first, second in changes], name="difference")
    table = texts.unstack("optimizer", sort=False).T
    return table[sorted(table, key=place_rank)]


def map_figure(accuracy: pd.DataFrame) -> Figure:
    """As the paper draws it: weights in rows, probes in columns; mean and range over seeds on each setting."""
    found = accuracy.groupby(["optimizer", *PLACE]).agg(["min", "mean", "max"])
    cells = sorted(found.index.droplevel("optimizer").unique(), key=place_rank, reverse=True)
    colours = {name: colour for name, _, colour in OPTIMIZERS.values()}
    with figure_style():
        sheet = Sheet(None, PLACES, narrowest=1.6, beside=1.0)
        for panel, mixer in zip(sheet.panels, PLACES, strict=True):
            for number, (name, colour) in enumerate(colours.items() if mixer else ()):
                own, at = found.loc[name][mixer].reindex(cells), np.arange(len(cells)) + 0.15 - 0.3 * number
                panel.plot(own[["min", "max"]].T, [at, at], color=colour, linewidth=0.8)
                panel.plot(own["mean"], at, "o", color=colour, markersize=3)
            if not mixer:
                panel.text(0.5, 0.5, "nothing is left", ha="center", transform=panel.transAxes)
            panel.set(xlim=(-0.03, 1.03), ylim=(-0.5, len(cells) - 0.5))
            panel.set(yticks=range(len(cells)), yticklabels=[setting_title(*cell) for cell in cells])
        handles = [Line2D([], [], color=own, marker="o", markersize=3, label=name) for name, own in colours.items()]
        under = (
            "rows: softmax weights, uniform with intercept, uniform without; columns: probe zero, learned, solved;"
            " points and lines: mean and range over three seeds"
        )
        return sheet.finish("The map of mechanisms: accuracy", under, handles, 0.14 * len(cells), whole=True)
