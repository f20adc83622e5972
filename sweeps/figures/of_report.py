"""Which figures a report has, and what each is made of."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import is_challenge
from mixerlab.sweeps.figures.axis import accuracy_by_key, difficulty, learning_rates, lengths
from mixerlab.sweeps.figures.canvas import Layout
from mixerlab.sweeps.figures.size import accuracy_by_size
from mixerlab.sweeps.figures.table import bars, heat_map
from mixerlab.sweeps.figures.training_curves import training_curves
from mixerlab.sweeps.tables.chance import chances_of_rows
from mixerlab.sweeps.tables.keys import Swept
from mixerlab.sweeps.tables.tables import Table

FIGURES = (
    "accuracy",
    "challenge",
    "state_size",
    "settings",
    "lengths",
    "difficulty",
    "learning_rates",
    "training_curves",
)
SWEPT = "by_"  # begins the name of a figure over the values of a key


def figures_of(
    results_dir: Path | None,
    swept: Swept,
    cells: pd.DataFrame,
    benchmark: pd.DataFrame,
    selection: Selection,
    tables: Mapping[str, Table],
    layout: Layout,
    is_first: bool,
) -> Iterator[tuple[str, Figure]]:
    """Each figure with its name, one after the other: all at once would take as much memory as there are mixers.

    Args:
        results_dir: holds the training curves; None: there are none.
        swept: the replicas, and the keys that were swept.
        cells: as `sweeps.collect.best_per_cell` gives them.
        benchmark: those of them that means are over.
        selection: what chose checkpoint and learning rate.
        tables: by name.
        layout: how wide the figures are, and whether they have a heading.
        is_first: whether this is the first selection of the report, which has all figures. Drawing is most of a
            report's time, and those of the other hardly differ, unless test rows have other lengths than validation.
    """
    frame, main = swept.frame, tables.get("accuracy", tables["settings"])
    harder = benchmark["task"].map(is_challenge).astype(bool)
    cells_of = {"accuracy": benchmark[~harder], "challenge": benchmark[harder]}
    of_main = cells_of["accuracy"] if "accuracy" in tables else benchmark
    made: dict[str, Callable[[], Figure | None]] = {}
    for name, title in (("accuracy", "Accuracy by task"), ("challenge", "Accuracy on the harder set")):
        if name in tables:
            chances = chances_of_rows(cells_of[name], tables[name])
            made[name] = partial(bars, tables[name], title, selection, layout, chances)
    for key in swept.keys:
        name = SWEPT + re.sub(r"\W+", "_", key)
        made[name] = partial(accuracy_by_key, swept, main, of_main, selection, key, layout)
    made["state_size"] = partial(accuracy_by_size, main, of_main, selection, layout)
    made["settings"] = partial(heat_map, tables["settings"], selection, layout)
    made["lengths"] = partial(lengths, frame, cells, selection, layout)
    made["difficulty"] = partial(difficulty, frame, benchmark, selection, layout)
    made["learning_rates"] = partial(learning_rates, frame, benchmark, selection, layout)
    if results_dir is not None:
        made["training_curves"] = partial(training_curves, results_dir, benchmark, selection, layout)
    for name, draw in made.items():
        if (is_first or (name == "lengths" and name in tables)) and (figure := draw()) is not None:
            yield name, figure
