"""Multi-query recall against its definition: rows written down, and rows read token by token."""

import numpy as np
import pytest
from golden_data import make_task

from mixerlab.tasks.base import IGNORE_INDEX


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
