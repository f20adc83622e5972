"""Multi-query recall against its definition: rows written down, and rows read token by token."""

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


@pytest.mark.parametrize("setting", ["4-64", "64-256"])
def test_rows_read_token_by_token_give_their_targets(setting):
    task = make_task("mqar", setting=setting)
    inputs, targets = task.generate(50, np.random.default_rng(0), "test")
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        value_of = {row[2 * j]: row[2 * j + 1] for j in range(task.num_kv_pairs)}
        assert len(value_of) == task.num_kv_pairs == len(set(value_of.values()))
        assert max(value_of) < 4096 <= min(value_of.values())
        asked = {t: token for t, token in enumerate(wanted) if token != IGNORE_INDEX}
        assert {row[t]: token for t, token in asked.items()} == value_of and len(asked) == len(value_of)
        assert all(t >= 2 * len(value_of) and t % 2 == 0 for t in asked)
        filler = {row[t] for t in range(2 * len(value_of), len(row)) if t not in asked}
        assert (filler == {0}) != task.random_non_queries


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
