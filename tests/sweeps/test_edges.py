"""When a grid of learning rates should be wider."""

import pytest

from mixerlab.records.edges import wants_a_wider_grid

GRID = {1e-4, 1e-3, 1e-2}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({1e-4: 0.2, 1e-3: 0.5, 1e-2: 0.52}, True),
        ({1e-4: 0.2, 1e-3: 0.515, 1e-2: 0.52}, False),  # ahead by 0.005 only
        ({1e-4: 0.97, 1e-3: 0.9, 1e-2: 0.985}, False),  # solved
        ({1e-4: 0.519, 1e-3: 0.5, 1e-2: 0.52}, True),  # the other edge is no inner rate
        ({1e-2: 0.52}, True),  # nothing finished at the others
        ({1e-4: 0.2, 1e-3: 0.6, 1e-2: 0.52}, False),  # the best is an inner one
        ({1e-4: 0.2, 1e-2: 0.52}, True),  # nothing finished between: far above the other edge
        ({1e-4: 0.515, 1e-2: 0.52}, False),
    ],
)
def test_the_edge_must_win_by_more_than_the_margin(scores, expected):
    best = max(scores, key=lambda rate: scores[rate])
    assert wants_a_wider_grid(best, scores, GRID) is expected


def test_of_two_rates_the_best_must_be_ahead_of_the_other():
    assert wants_a_wider_grid(1e-3, {1e-4: 0.2, 1e-3: 0.5}, {1e-4, 1e-3})
    assert not wants_a_wider_grid(1e-3, {1e-4: 0.495, 1e-3: 0.5}, {1e-4, 1e-3})
    assert not wants_a_wider_grid(1e-3, {1e-4: 0.5, 1e-3: 0.5}, {1e-4, 1e-3})


def test_one_rate_has_no_edge():
    assert not wants_a_wider_grid(1e-3, {1e-3: 0.5}, {1e-3})
