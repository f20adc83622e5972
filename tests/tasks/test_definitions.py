"""State tracking and multi-query recall against their definitions."""

import numpy as np
import pytest
from golden_data import make_task

from mixerlab.tasks.base import IGNORE_INDEX, TaskRuleError
from mixerlab.tasks.state_tracking import GROUPS, elements, multiplication_table

ORDERS = {"Z2": 2, "S3": 6, "A5": 60, "S5": 120}
# How many elements of a group have which order (the least power that is the identity).
ELEMENT_ORDERS = {
    "Z2": {1: 1, 2: 1},
    "S3": {1: 1, 2: 3, 3: 2},
    "A5": {1: 1, 2: 15, 3: 20, 5: 24},
    "S5": {1: 1, 2: 25, 3: 20, 4: 30, 5: 24, 6: 20},
}
# Written out by hand. Z2: parity. S3: 3 = (1, 2, 0) is a rotation, 1 = (0, 2, 1), 2 = (1, 0, 2) and 5 = (2, 1, 0) swap.
GOLDEN = [
    ("Z2", [1, 0, 1, 1, 0, 1, 1], [1, 1, 0, 1, 1, 0, 1]),
    ("S3", [3, 1, 5, 0], [3, 2, 4, 4]),
    ("S3", [1, 1, 3, 3, 3, 2, 1], [1, 0, 3, 4, 0, 2, 3]),
    ("S5", [0, 119, 119, 1, 6], [0, 119, 0, 1, 7]),  # 119 reverses, 1 swaps points 3 and 4, 6 points 1 and 2
]


def small(group, seq_len):
    return make_task("state_tracking", group=group, vocab_size=ORDERS[group], seq_len=seq_len)


@pytest.mark.parametrize(("group", "inputs", "targets"), GOLDEN)
def test_golden_rows(group, inputs, targets):
    rows = np.array([inputs]), np.array([targets])
    small(group, len(inputs)).check(*rows, "test")
    for t in range(len(targets)):
        wrong = rows[1].copy()
        wrong[0, t] = (wrong[0, t] + 1) % ORDERS[group]
        with pytest.raises(TaskRuleError, match=f"targets, row 0: position {t}: found {wrong[0, t]}"):
            small(group, len(inputs)).check(rows[0], wrong, "test")


@pytest.mark.parametrize("group", GROUPS)
def test_the_tables_are_those_of_the_groups(group):
    table, order = multiplication_table(group), ORDERS[group]
    members = elements(group)
    assert len(members) == order and members == sorted(members) and members[0] == tuple(range(len(members[0])))
    assert (np.sort(table, axis=0) == np.arange(order)[:, None]).all()
    assert (np.sort(table, axis=1) == np.arange(order)).all()
    assert (table[0] == np.arange(order)).all() and (table[:, 0] == np.arange(order)).all()
    assert (table[table] == table[:, table]).all()  # (p q) r = p (q r)
    found = {}
    for element in range(order):
        power, n = element, 1
        while power:
            power, n = table[power, element], n + 1
        found[n] = found.get(n, 0) + 1
    assert found == ELEMENT_ORDERS[group]


@pytest.mark.parametrize(("setting", "values"), [("4-64", 1), ("64-256", 8192)])
def test_what_asks_for_nothing_is_empty_or_drawn_from_all_tokens(setting, values):
    """The rules of the task hold the rest of a row."""
    task = make_task("mqar", setting=setting)
    inputs, targets = task.generate(2000, np.random.default_rng(0), "test")
    context = slice(2 * task.num_kv_pairs, None)
    assert len(np.unique(inputs[:, context][targets[:, context] == IGNORE_INDEX])) == values


def test_distances_fall_as_the_power_law_says():
    """With one pair, slot i is asked at with a probability of i^(a - 1) over their sum."""
    task = make_task("mqar", vocab_size=64, num_kv_pairs=1, seq_len=22)
    _, targets = task.generate(20_000, np.random.default_rng(1), "train")
    found = (targets[:, 2::2] != IGNORE_INDEX).sum(axis=0)
    expected = np.arange(1, 11) ** (0.01 - 1)
    expected *= 20_000 / expected.sum()
    assert (np.abs(found - expected) < 5 * np.sqrt(expected)).all()
