"""The rule for the best learning rate of some runs, the same for tables, loggers and searches."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from mixerlab.records.edges import MARGIN, NEAR_PERFECT, on_the_edge, wants_a_wider_grid

Selection = Literal["official", "clean"]

# The accuracy that chooses the learning rate.
CHOSEN_BY = {"official": "official_accuracy", "clean": "clean_val_accuracy"}
ENDED = ("finished", "diverged")  # statuses of replicas that count, see `accuracy_of`


def best_trial(rows: Sequence[Mapping[str, Any]], selection: Selection) -> tuple[list[Mapping[str, Any]], bool]:
    """The finished rows, by seed, of the best (configuration, learning rate), and whether its grid should be wider.

    The best has the highest accuracy averaged over seeds, on test (`official`) or on validation (`clean`). All are
    compared on the same seeds, those at which any finished: where a rate diverged it counts as 0, and where it has no
    score for another reason (failed, not run yet), as the lowest of all rates at that seed. One that finished fewer
    seeds than another must lead by more than `sweeps.edges.MARGIN`. So it can win, but not by lacking the hard seeds: a
    mean over fewer seeds is higher by luck. Between equals, one with more seeds wins, then the higher mean over its own
    seeds, then one inside the grid, then the smaller learning rate. `sweeps.edges.wants_a_wider_grid` says when a grid
    should be wider.

    Args:
        rows: of a record, which has one configuration, or of `sweeps.collect.collect`, whose `config` names it.
        selection: which accuracy chooses.

    Returns:
        No rows and False if no replica finished.
    """
    trials: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    grids = defaultdict[str, set[float]](set)
    known: dict[tuple[str, float], dict[int, float]] = {}  # what counts of a trial at a seed
    lowest: dict[int, float] = {}
    for row in rows:
        trial = row.get("config", ""), row["lr"]
        grids[trial[0]].add(row["lr"])
        if row["status"] in ENDED:
            score = accuracy_of(row, CHOSEN_BY[selection])
            known.setdefault(trial, {})[row["seed"]] = score
            lowest[row["seed"]] = min(score, lowest.get(row["seed"], score))
        if row["status"] == "finished":
            trials.setdefault(trial, []).append(row)
    if not trials:
        return [], False
    most = max(map(len, trials.values()))
    seeds = {row["seed"] for finished in trials.values() for row in finished}
    ranked, scores = [], defaultdict[str, dict[float, float]](dict)
    for (config, lr), finished in trials.items():
        # Rounded: the means of (0.1, 0.1, 0.4) and (0.1, 0.2, 0.3) differ in their last bit.
        score = round(fmean(known[config, lr].get(seed, lowest[seed]) for seed in seeds), 12)
        mean = round(fmean(row[CHOSEN_BY[selection]] for row in finished), 12)
        scores[config][lr] = score
        lead = round(score - MARGIN, 12) if len(finished) < most else score
        edge = on_the_edge(lr, grids[config])
        ranked.append(((-lead, -len(finished), -mean, edge, lr, config), finished))
    (_, _, mean, _, lr, config), finished = min(ranked, key=lambda entry: entry[0])
    # Of its own seeds, as the tables show it and count those below: the score may be over others as well.
    solved = -mean >= NEAR_PERFECT
    wider = not solved and wants_a_wider_grid(lr, scores[config], grids[config])
    return sorted(finished, key=lambda row: row["seed"]), wider


def ended_at_best_rate(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of a record at its best learning rate by validation that finished or diverged, by seed.

    Empty if no replica finished. `accuracy_of` says what each counts.
    """
    finished, _ = best_trial(rows, "clean")
    best = [row for row in rows if finished and row["lr"] == finished[0]["lr"] and row["status"] in ENDED]
    return sorted(best, key=lambda row: row["seed"])


def accuracy_of(row: Mapping[str, Any], column: str) -> float:
    """An accuracy of a row that ended: a diverged replica counts as 0."""
    return row[column] if row["status"] == "finished" else 0.0
