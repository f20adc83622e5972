"""Multi-query recall against its definition: rows written down, and what is drawn."""

import numpy as np
import pytest
from golden_data import make_task
from test_task_rules import changed

from mixerlab.tasks.base import IGNORE_INDEX, TaskRuleError

_ = IGNORE_INDEX
EMPTY = make_task("mqar", vocab_size=12, num_kv_pairs=2, seq_len=16, random_non_queries=False)
FILLED = make_task("mqar", vocab_size=12, num_kv_pairs=2, seq_len=16, random_non_queries=True)
INPUTS = [2, 8, 4, 7, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 2, 0]
TARGETS = [_, _, _, _, _, _, _, _, 7, _, _, _, _, _, 8, _]
# Filler may repeat a key (4 at position 6) or a value; only scored positions ask.
NOISY = [2, 8, 4, 7, 11, 0, 4, 8, 4, 3, 0, 9, 5, 2, 2, 7]


@pytest.mark.parametrize(("task", "inputs"), [(EMPTY, INPUTS), (FILLED, INPUTS), (FILLED, NOISY)])
def test_golden_rows(task, inputs):
    task.check(np.array([inputs]), np.array([TARGETS]), "test")


BROKEN = [
    (changed(INPUTS, p0=0), TARGETS, "position 0: a pair begins with a key"),
    (changed(INPUTS, p3=5), TARGETS, "position 3: a pair ends with a value"),
    (changed(INPUTS, p2=2), TARGETS, "position 2: the keys of a row are distinct"),
    (changed(INPUTS, p3=8), TARGETS, "position 3: the values of a row are distinct"),
    (INPUTS, changed(TARGETS, p9=7), "position 9: only the first token of a slot"),
    (INPUTS, changed(TARGETS, p8=_), "2 positions are scored"),
    (changed(INPUTS, p8=3), TARGETS, "position 8: a scored position holds the key of a pair"),
    (changed(INPUTS, p8=2), TARGETS, "position 2: each key is asked for once"),
    (INPUTS, changed(TARGETS, p8=8), "position 8: found 8, the inputs give 7"),
    (changed(INPUTS, p5=3), TARGETS, "position 5: what asks for nothing is empty"),
]


@pytest.mark.parametrize(("inputs", "targets", "rule"), BROKEN)
def test_a_broken_rule_is_named(inputs, targets, rule):
    with pytest.raises(TaskRuleError, match=f"row 0: {rule}"):
        EMPTY.check(np.array([inputs]), np.array([targets]), "test")


@pytest.mark.parametrize("task", [EMPTY, FILLED])
def test_what_asks_for_nothing_is_random_if_wanted(task):
    inputs, targets = task.generate(50, np.random.default_rng(0), "test")
    task.check(inputs, targets, "test")
    filler = inputs[:, 4:][targets[:, 4:] == _]
    assert set(filler.tolist()) == (set(range(12)) if task.random_non_queries else {0})


def test_distances_fall_as_the_power_law_says():
    """With one pair, slot i is asked at with a probability of i^(a - 1) over their sum."""
    task = make_task("mqar", vocab_size=64, num_kv_pairs=1, seq_len=22)
    _, targets = task.generate(20_000, np.random.default_rng(1), "train")
    found = (targets[:, 2::2] != IGNORE_INDEX).sum(axis=0)
    expected = np.arange(1, 11) ** (0.01 - 1)
    expected *= 20_000 / expected.sum()
    assert (np.abs(found - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (dict(num_kv_pairs=33), "task.seq_len=128: must be even and at least 132"),
        (dict(vocab_size=17), "task.vocab_size=17: must be at least 18"),
        (dict(power_a=0), "task.power_a=0: must be a finite number above 0"),
        (dict(random_non_queries=1), "task.random_non_queries=1: must be true or false|random_non_queries=1 must be"),
    ],
)
def test_what_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        make_task("mqar", **parameters)
