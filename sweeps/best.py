"""The rule for the best learning rate of some runs, the same for tables, loggers and searches."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from mixerlab.sweeps.edges import on_the_edge, wants_a_wider_grid

Selection = Literal["official", "clean"]

# The accuracy that chooses the learning rate.
CHOSEN_BY = {"official": "official_accuracy", "clean": "clean_val_accuracy"}


def best_trial(rows: Sequence[Mapping[str, Any]], selection: Selection) -> tuple[list[Mapping[str, Any]], bool]:
    """The finished rows, by seed, of the best (configuration, learning rate), and whether its grid should be wider.

    The best has the highest accuracy averaged over its seeds, on test (`official`) or on validation (`clean`). One that
    has fewer seeds than another, lost or not run yet, competes only with those that have as few: a mean over fewer
    seeds is higher by luck. Between equals, one inside the grid wins, then the smaller learning rate.
    `sweeps.edges.wants_a_wider_grid` says when a grid should be wider.

    Args:
        rows: of a record, which has one configuration, or of `sweeps.collect.collect`, whose `config` names it.
        selection: which accuracy chooses.

    Returns:
        No rows and False if no replica finished.
    """
    trials: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    grids = defaultdict[str, set[float]](set)
    for row in rows:
        config = row.get("config", "")
        trials.setdefault((config, row["lr"]), []).append(row)
        grids[config].add(row["lr"])
    ranked, scores = [], defaultdict[str, dict[float, float]](dict)
    for (config, lr), tried in trials.items():
        finished = [row for row in tried if row["status"] == "finished"]
        if finished:
            # Rounded: the means of (0.1, 0.1, 0.4) and (0.1, 0.2, 0.3) differ in their last bit.
            score = round(fmean(row[CHOSEN_BY[selection]] for row in finished), 12)
            scores[config][lr] = score
            edge = on_the_edge(lr, grids[config])
            ranked.append(((-len(finished), -score, edge, lr, config), finished))
    if not ranked:
        return [], False
    (_, _, _, lr, config), finished = min(ranked, key=lambda entry: entry[0])
    return sorted(finished, key=lambda row: row["seed"]), wants_a_wider_grid(lr, scores[config], grids[config])


def finished_at_best_rate(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The finished rows of a record at its best learning rate by validation, by seed; none if no replica finished."""
    return best_trial(rows, "clean")[0]
