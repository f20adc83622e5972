"""Which learning rate is best where rates have different seeds."""

from itertools import permutations

import pytest

from mixerlab.records.best import best_trial


def rows_of(scores):
    """Rows from the accuracy by seed of each rate; in its place a status."""
    return [
        {
            "lr": lr,
            "seed": seed,
            "status": score if isinstance(score, str) else "finished",
            "official_accuracy": None if isinstance(score, str) else score,
        }
        for lr, by_seed in scores.items()
        for seed, score in by_seed.items()
    ]


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        # More seeds do not make a bad rate the best.
        ({5e-3: {0: 0.3, 1: 0.2}, 1e-3: {0: 1.0}}, 1e-3),
        ({5e-3: {0: 0.3, 1: 0.2}, 1e-3: {0: 1.0, 1: "failed"}}, 1e-3),
        ({5e-3: dict.fromkeys(range(5), 0.4), 1e-3: {0: 1.0}}, 1e-3),
        # Nor does a mean over the easy seed alone: on the seed that both have, they are equal, or nearly.
        ({5e-3: {0: 1.0, 1: 0.206}, 1e-3: {0: 1.0}}, 5e-3),
        ({5e-3: {0: 0.9998, 1: 0.206}, 1e-3: {0: 1.0}}, 5e-3),
        ({5e-3: {0: 1.0, 1: 0.206}, 1e-3: {0: 1.0, 1: "diverged"}}, 5e-3),
        # What it lacks is taken to be as bad as the worst there.
        ({5e-4: {0: 0.5, 1: 0.5}, 1e-3: {0: 0.7, 1: 0.7}, 5e-3: {0: 0.8}}, 1e-3),
        # A divergence is no gap but a failure.
        ({5e-3: {0: 0.5, 1: 0.5}, 1e-3: {0: 0.9, 1: "diverged"}}, 5e-3),
        ({5e-3: {0: 0.5, 1: 0.5}, 1e-3: {0: 0.9, 1: "failed"}}, 1e-3),
        # No seed in common.
        ({5e-3: {0: 0.5}, 1e-3: {1: 0.9}}, 1e-3),
        ({5e-3: {0: 0.9}, 1e-3: {1: 0.5}}, 5e-3),
        # A seed at which all diverged says nothing.
        ({5e-3: {0: 0.5, 1: "diverged"}, 1e-3: {0: 0.505}}, 1e-3),
    ],
)
def test_rates_are_compared_on_the_same_seeds(scores, best):
    for order in permutations(scores.items()):
        rows, _ = best_trial(rows_of(dict(order)), "official")
        assert {row["lr"] for row in rows} == {best}
        assert [row["seed"] for row in rows] == [
            seed for seed, score in scores[best].items() if not isinstance(score, str)
        ]


def test_the_lead_of_an_edge_is_on_the_same_seeds():
    """0.575 at the edge against 0.9 inside, which lacks the hard seed: on that of both it leads by 0.05."""
    grid = {1e-4: {0: 0.1, 1: 0.1}, 1e-3: {0: 0.9}, 1e-2: {0: 0.95, 1: 0.2}}
    rows, wider = best_trial(rows_of(grid), "official")
    assert ({row["lr"] for row in rows}, wider) == ({1e-2}, True)
    grid[1e-3] = {0: 0.95, 1: 0.195}
    assert best_trial(rows_of(grid), "official")[1] is False


def test_a_solved_cell_wants_no_wider_grid_whatever_seeds_it_lacks():
    rows, wider = best_trial(rows_of({1e-4: {0: 0.1}, 1e-3: {0: 0.3, 1: 0.2}, 1e-2: {0: 1.0}}), "official")
    assert ({row["lr"] for row in rows}, wider) == ({1e-2}, False)
