"""When the best learning rate of a cell says that its grid should be wider.

Many cells are near perfect at every rate, or best at the outermost ones only by rounding: those say nothing. An edge
counts if it is ahead of every rate between by more than MARGIN, on a cell below NEAR_PERFECT. Where no rate between has
a score, as in a grid of two, it must be as far ahead of the other edge. A grid of one rate has no edge: nothing says on
which side to look further.
"""

from collections.abc import Mapping

NEAR_PERFECT = 0.98  # accuracy
MARGIN = 0.01


def on_the_edge(rate: float, grid: set[float]) -> bool:
    """Whether a rate is the smallest or the largest of several."""
    return len(grid) > 1 and rate in (min(grid), max(grid))


def wants_a_wider_grid(best: float, scores: Mapping[float, float], grid: set[float]) -> bool:
    """Whether the best rate is at the edge of its grid, below NEAR_PERFECT, and over MARGIN ahead of all inner ones.

    Without inner ones it must be ahead of the other edge; if that has no score either, the best is all that there is of
    the grid, and it should be wider.

    Args:
        best: the rate that was chosen, one of `scores`.
        scores: accuracy by rate, on the same seeds, without the rates at which nothing finished.
        grid: all rates that were tried.
    """
    if not on_the_edge(best, grid) or scores[best] >= NEAR_PERFECT:
        return False
    others = {rate: score for rate, score in scores.items() if rate != best}
    inner = {rate: score for rate, score in others.items() if not on_the_edge(rate, grid)}
    # Rounded: 0.9 - 0.89 is more than 0.01 in its last bit.
    return all(round(scores[best] - score, 12) > MARGIN for score in (inner or others).values())
