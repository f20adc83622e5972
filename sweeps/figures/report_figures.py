"""Which figures a report has, and what each is made of."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import is_challenge, other_test_length
from mixerlab.sweeps.figures.by_key import score_by_key
from mixerlab.sweeps.figures.by_size import score_by_size
from mixerlab.sweeps.figures.by_task import by_task
from mixerlab.sweeps.figures.curves import training_curves
from mixerlab.sweeps.figures.difficulty import difficulty, harder_set, lengths
from mixerlab.sweeps.figures.heat_map import heat_map
from mixerlab.sweeps.figures.rates import learning_rates
from mixerlab.sweeps.figures.sheet import Layout
from mixerlab.sweeps.tables.columns import keys_of


def report_figures(
    results_dir: Path | None,
    frame: pd.DataFrame,
    cells: pd.DataFrame,
    benchmark: pd.DataFrame,
    selection: Selection,
    layout: Layout,
    is_first: bool,
) -> Iterator[tuple[str, Figure]]:
    """Each figure with its name, one after the other: all at once would take as much memory as there are columns.

    Args:
        results_dir: holds the training curves; None, or a file: there are none.
        frame: as `spread_out` gives it.
        cells: as `best_per_cell` gives them.
        benchmark: those of them that means are over.
        selection: what chose checkpoint and learning rate.
        layout: how wide the figures are, and whether they have a heading.
        is_first: whether this is the first selection of the report, which has all figures. Drawing is most of a
            report's time, and those of the other hardly differ, unless test rows have other lengths than validation.
    """
    harder = benchmark["task"].map(is_challenge).astype(bool)
    main = benchmark if harder.all() else benchmark[~harder]
    draw: dict[str, Callable[[], Figure | None]] = {}
    if is_first:
        if not harder.all():
            draw["accuracy"] = partial(by_task, main, selection, layout)
        if harder.any():
            draw["challenge"] = partial(harder_set, benchmark[harder], selection, layout)
        keys = keys_of(cells["column"])
        for key in keys:
            name = re.sub(r"\W+", "_", key)
            draw[f"by_{name}"] = partial(score_by_key, main, keys, key, selection, layout)
        draw["state_size"] = partial(score_by_size, main, selection, layout)
        draw["settings"] = partial(heat_map, cells, selection, layout)
        draw["difficulty"] = partial(difficulty, frame, benchmark, selection, layout)
        draw["learning_rates"] = partial(learning_rates, frame, benchmark, selection, layout)
        if results_dir is not None and results_dir.is_dir():
            draw["training_curves"] = partial(training_curves, results_dir, benchmark, selection, layout)
    if is_first or any(other_test_length(setting) for setting in cells["setting"]):
        draw["lengths"] = partial(lengths, frame, cells, selection, layout)
    for name, made in draw.items():
        if (figure := made()) is not None:
            yield name, figure
