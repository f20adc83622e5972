"""Which figures a report has."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.best import Selection
from mixerlab.records.names import has_other_test_length, is_challenge
from mixerlab.sweeps.figures.by_task import by_task
from mixerlab.sweeps.figures.curves import training_curves
from mixerlab.sweeps.figures.difficulty import difficulty, harder_set
from mixerlab.sweeps.figures.heat_map import heat_map
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.figures.swept import learning_rates, score_by_key, score_by_size
from mixerlab.sweeps.tables.cells import of_columns_with_runs
from mixerlab.sweeps.tables.columns import keys_of


def report_figures(
    sources: Sequence[Path],
    frame: pd.DataFrame,
    cells: pd.DataFrame,
    benchmark: pd.DataFrame,
    selection: Selection,
    width: float | None,
    is_first: bool,
) -> Iterator[tuple[str, Figure]]:
    """Each figure with its name, one after the other: all at once would take as much memory as there are columns.

    Of several scores each has all figures; those of all but the first have its name behind theirs. The results folders
    `sources` hold the training curves. Means are over the cells of the `benchmark`.

    Only the first selection of a report has all figures: drawing is most of a report's time, and those of the other
    hardly differ, unless test rows have other lengths than validation.
    """
    for place, (score, every) in enumerate(cells.groupby("score", sort=False)):
        own, in_means = (of_columns_with_runs(of, frame) for of in (every, benchmark[benchmark["score"] == score]))
        scores = Scores(frame[frame["task"].isin(own["task"])], own, selection, width)
        for name, figure in _of_one(sources, scores, in_means, is_first):
            if figure is not None:
                yield name if place == 0 or name == score.name else f"{name}_{score.name}", figure


def _of_one(
    sources: Sequence[Path], scores: Scores, benchmark: pd.DataFrame, is_first: bool
) -> Iterator[tuple[str, Figure | None]]:
    """The figures of one score, each drawn when it is asked for; None for one that has nothing to show."""
    in_means = replace(scores, cells=benchmark)
    harder = benchmark["task"].map(is_challenge).astype(bool)
    main = in_means if harder.all() else replace(scores, cells=benchmark[~harder])
    if is_first:
        if not harder.all():
            yield scores.score.name, by_task(main)
        if harder.any():
            yield "challenge", harder_set(replace(scores, cells=benchmark[harder]))
        for key in keys_of(scores.look):
            yield "by_" + re.sub(r"\W+", "_", key), score_by_key(main, key)
        yield "state_size", score_by_size(main)
        yield "settings", heat_map(scores)
        yield "learning_rates", learning_rates(in_means)
        if sources[0].is_dir():
            yield "training_curves", training_curves(in_means, *sources)
    if is_first or any(map(has_other_test_length, scores.cells["setting_name"])):
        yield "difficulty", difficulty(scores)
