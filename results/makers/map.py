"""The Parallax paper's map of mechanisms, measured: the questions were written before the runs.

A bare MesaNet is without what linear attention does not have either, and stands for its place in the map.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from makers import common
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mixerlab.records.names import place_rank
from mixerlab.sweeps.figures.difficulty import setting_title
from mixerlab.sweeps.figures.sheet import Sheet, figure_style, save

DIFFERENCES_NOTE = """\
Accuracy of the first less that of the second, mean over seeds ± half of Student's 95% interval."""
MUON_RATES = (3e-3, 1e-2, 3e-2)
OPTIMIZERS = {"muon": ("Muon", MUON_RATES, "#D55E00"), "adamw": ("AdamW", common.ADAMW_RATES, "#0072B2")}
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
    rows = rows[rows.groupby(["task", "setting"])["optimizer"].transform("nunique") == len(OPTIMIZERS)]
    seeds = {
        name: common.best_of_seeds(rows[rows["optimizer"] == key], rates, "clean")
        for key, (name, rates, _) in OPTIMIZERS.items()
    }
    accuracies = {name: own["accuracy"] for name, own in seeds.items()}
    (folder / "accuracy.md").write_text(common.recipe_table(seeds))
    lines = [["what helps?", "first", "second", *seeds, "Muon less AdamW"]]
    for question, pairs in QUESTIONS.items():
        for first, second in pairs:
            found = [gains(own, first, second) for own in accuracies.values()]
            texts = [f"{common.mean_change(own)} ({count})" for own, count in found]
            lines.append([question, first, second, *texts, common.difference_of_means(*(own for own, _ in found))])
    common.write_in_page(folder, "questions", lines, 3)
    (folder / "differences.md").write_text(differences_table(accuracies))
    save(map_figure(accuracies), folder / "map")


def map_rows() -> pd.DataFrame:
    """The rows, whose mixers are named by what they are."""
    rows = common.rows_in("map")
    bare = rows["mixer"].isin(["mesa", "affine_mesa"]) & rows["mixer.ungated"].eq(True)
    rows["mixer"] += bare.map({True: BARE, False: ""})
    rows["mixer"] += rows["mixer.allow_neg_eigval"].eq(True).map({True: NEGATIVE, False: ""})
    return rows


def gains(accuracy: pd.Series, first: str, second: str) -> tuple[list[float], int]:
    """By seed, the mean over the settings of which both mechanisms have all seeds; and how many settings."""
    by_mixer = accuracy.unstack("mixer")
    change = (by_mixer[first] - by_mixer[second]).unstack("seed").dropna()
    return list(change.mean()), len(change)


def differences_table(accuracies: Mapping[str, pd.Series]) -> str:
    """The differences of all questions by setting."""
    by_mixer = {name: own.unstack("mixer") for name, own in accuracies.items()}
    cells = sorted({cell[:2] for own in by_mixer.values() for cell in own.index}, key=place_rank)
    lines = [["difference", "optimizer", *map(" ".join, cells)]]
    for first, second in itertools.chain(*QUESTIONS.values()):
        for name, own in by_mixer.items():
            by_cell = (own[first] - own[second]).dropna().groupby(["task", "setting"]).agg(list)
            texts = [common.mean_change(by_cell.get(cell, []), usual=3) for cell in cells]
            lines.append([f"{first} less {second}", name, *texts])
    return common.noted(lines, 2, DIFFERENCES_NOTE)


def map_figure(accuracies: Mapping[str, pd.Series]) -> Figure:
    """As the paper draws it: weights in rows, probes in columns; mean and range over seeds on each setting."""
    by_cell = pd.concat(accuracies, names=["optimizer"]).groupby(["optimizer", "mixer", "task", "setting"])
    found = by_cell.agg(["min", "mean", "max"])
    cells = sorted({key[2:] for key in found.index}, key=place_rank, reverse=True)
    colours = {name: colour for name, _, colour in OPTIMIZERS.values()}
    with figure_style():
        sheet = Sheet(None, PLACES, narrowest=1.6, beside=1.0)
        for panel, mixer in zip(sheet.panels, PLACES, strict=True):
            for number, name in enumerate(accuracies):
                for y, cell in enumerate(cells):
                    if (key := (name, mixer, *cell)) in found.index:
                        low, mean, high = found.loc[key]
                        at = y + 0.15 - 0.3 * number
                        panel.plot([low, high], [at, at], color=colours[name], linewidth=0.8)
                        panel.plot(mean, at, "o", color=colours[name], markersize=3)
            if not mixer:
                panel.text(0.5, 0.5, "nothing is left", ha="center", transform=panel.transAxes)
            panel.set(
                xlim=(-0.03, 1.03),
                ylim=(-0.5, len(cells) - 0.5),
                yticks=range(len(cells)),
                yticklabels=[setting_title(*cell) for cell in cells],
            )
        handles = [Line2D([], [], color=colours[name], marker="o", markersize=3, label=name) for name in accuracies]
        under = (
            "rows: softmax weights, uniform with intercept, uniform without; columns: probe zero, learned, solved;"
            " points and lines: mean and range over three seeds"
        )
        return sheet.finish("The map of mechanisms: accuracy", under, handles, 0.14 * len(cells), whole=True)
