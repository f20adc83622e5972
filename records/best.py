"""The rule for the best learning rate of some runs, the same for tables, loggers and searches, and for wider grids.

Many cells are near perfect at every rate, or best at the outermost ones only by rounding: those say nothing. A grid
should be wider if its best rate is its smallest or largest, below NEAR_PERFECT, and more than MARGIN ahead of every
rate in between; in a grid of two, of the other one. A grid of one rate has no edge: nothing says where to look further.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from mixerlab.records.schema import ACCURACY, Score

Selection = Literal["official", "clean"]

SELECTIONS: tuple[Selection, ...] = ("official", "clean")
ENDED = ("finished", "diverged")  # statuses of replicas that count, see `score_of`
NEAR_PERFECT = 0.98  # of an accuracy
MARGIN = 0.01  # of a score


def check_selection(selection: str) -> None:
    if selection not in SELECTIONS:
        raise ValueError(f"selection={selection!r}: choose {' or '.join(SELECTIONS)}")


def chosen_by(selection: Selection, score: Score = ACCURACY) -> str:
    """The column of a record's rows by which a selection chooses the learning rate: on test, or on validation."""
    return f"official_{score.name}" if selection == "official" else f"clean_val_{score.name}"


def best_trial(
    rows: Sequence[Mapping[str, Any]], selection: Selection, score: Score = ACCURACY
) -> tuple[list[Mapping[str, Any]], bool]:
    """The finished rows, by seed, of the best (configuration, learning rate), and whether its grid should be wider.

    The best has the best score averaged over seeds, on test (`official`) or on validation (`clean`). All are compared
    on the same seeds, those at which any finished: where a rate diverged it has the worst score, and where it has none
    for another reason (failed, not run yet), the worst of all rates at that seed. One that finished fewer seeds than
    another must lead by more than `MARGIN`: a mean over fewer seeds is higher by luck. Between equals, one with more
    seeds wins, then the better mean over its own seeds, then one inside the grid, then the smaller learning rate.

    `rows` are of a record, which has one configuration, or of `collect`, whose `config` names it. No rows and False if
    no replica finished.
    """
    column, sign = chosen_by(selection, score), score.sign
    finished = defaultdict[tuple[str, float], list[Mapping[str, Any]]](list)
    grids = defaultdict[str, set[float]](set)
    known = defaultdict[tuple[str, float], dict[int, float]](dict)  # by trial and seed, the higher the better
    worst: dict[int, float] = {}
    for row in rows:
        trial = row.get("config", ""), row["lr"]
        grids[trial[0]].add(row["lr"])
        if row["status"] in ENDED:
            value = sign * score_of(row, column, score)
            known[trial][row["seed"]] = value
            worst[row["seed"]] = min(value, worst.get(row["seed"], value))
        if row["status"] == "finished":
            finished[trial].append(row)
    if not finished:
        return [], False
    most = max(map(len, finished.values()))
    seeds = {row["seed"] for trial in finished.values() for row in trial}
    means = defaultdict[str, dict[float, float]](dict)
    ranked = []
    for (config, lr), own in finished.items():
        # Rounded: the means of (0.1, 0.1, 0.4) and (0.1, 0.2, 0.3) differ in their last bit.
        mean = round(fmean(known[config, lr].get(seed, worst[seed]) for seed in seeds), 12)
        own_mean = round(fmean(sign * row[column] for row in own), 12)
        means[config][lr] = mean
        lead = round(mean - MARGIN, 12) if len(own) < most else mean
        ranked.append((-lead, -len(own), -own_mean, _on_the_edge(lr, grids[config]), lr, config))
    _, _, own_mean, _, lr, config = min(ranked)
    # Of its own seeds, as the tables show it; the mean may be over others as well.
    solved = score.is_accuracy and max(-own_mean, means[config][lr]) >= NEAR_PERFECT
    wider = not solved and _wants_a_wider_grid(lr, means[config], grids[config])
    return sorted(finished[config, lr], key=lambda row: row["seed"]), wider


def ended_at_best_rate(rows: Sequence[Mapping[str, Any]], score: Score = ACCURACY) -> list[Mapping[str, Any]]:
    """The rows of a record at its best learning rate by validation that finished or diverged, by seed.

    Empty if no replica finished. `score_of` says what each counts.
    """
    finished, _ = best_trial(rows, "clean", score)
    best = [row for row in rows if finished and row["lr"] == finished[0]["lr"] and row["status"] in ENDED]
    return sorted(best, key=lambda row: row["seed"])


def score_of(row: Mapping[str, Any], column: str, score: Score = ACCURACY) -> float:
    """A score of a row that ended: a diverged replica has the worst, an accuracy of 0 or an infinite loss."""
    return row[column] if row["status"] == "finished" else score.worst


def _wants_a_wider_grid(best: float, means: Mapping[float, float], grid: set[float]) -> bool:
    """Whether the best rate, one of `means` (by rate, the higher the better, on the same seeds), asks for a wider grid.

    `grid` has all rates that were tried.
    """
    if not _on_the_edge(best, grid):
        return False
    others = {rate: mean for rate, mean in means.items() if rate != best}
    inner = {rate: mean for rate, mean in others.items() if not _on_the_edge(rate, grid)}
    # Rounded: 0.9 - 0.89 is more than 0.01 in its last bit.
    return all(round(means[best] - mean, 12) > MARGIN for mean in (inner or others).values())


def _on_the_edge(rate: float, grid: set[float]) -> bool:
    """Whether a rate is the smallest or the largest of several."""
    return len(grid) > 1 and rate in (min(grid), max(grid))
