"""Which figures a report has, and what each is made of."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.sweeps.figures.canvas import Layout


def figures_of(
    source: Path,
    frame: pd.DataFrame,
    cells: pd.DataFrame,
    benchmark: pd.DataFrame,
    selection: Selection,
    layout: Layout,
    is_first: bool,
) -> Iterator[tuple[str, Figure]]:
    """Each figure with its name, one after the other: all at once would take as much memory as there are mixers.

    Args:
        source: the results folder, which holds the training curves; a `rows.csv` has none.
        frame: the replicas, as `spread_out` gives them.
        cells: as `best_per_cell` gives them.
        benchmark: those of them that means are over; of these the harder set (`is_challenge`) has a figure of its own.
        selection: what chose checkpoint and learning rate.
        layout: how wide the figures are, and whether they have a heading.
        is_first: whether this is the first selection of the report, which has all figures. Drawing is most of a
            report's time, and those of the other hardly differ, unless test rows have other lengths than validation.
    """
    yield from ()  # until the figures take columns
