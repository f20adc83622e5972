"""When a grid of learning rates should be wider."""

import pytest

from mixerlab.sweeps.edges import wants_a_wider_grid

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
    ],
)
def test_the_edge_must_win_by_more_than_the_margin(scores, expected):
    best = max(scores, key=lambda rate: scores[rate])
    assert wants_a_wider_grid(best, scores, GRID) is expected


def test_two_rates_have_none_between():
    assert wants_a_wider_grid(1e-3, {1e-4: 0.2, 1e-3: 0.5}, {1e-4, 1e-3})
    assert not wants_a_wider_grid(1e-3, {1e-3: 0.5}, {1e-3})
