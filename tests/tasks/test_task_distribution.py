"""Whole rows of tiny tasks have the same frequencies as rows of an oracle that draws token by token.

This catches every dependence between positions, for tasks so small that all rows can be counted. For larger tasks,
statistics of the rows (such as the share of probes that were never shown) are compared with the same oracle.
"""

from random import Random

import loop_generators
import numpy as np
import pytest
from golden_data import make_task
from row_statistics import MAX_Z, row_distribution_z, row_statistics, z_scores

NUM_ROWS = 10_000

TINY = {
    "icr": (loop_generators.recall_row, dict(vocab_size=4, seq_len=8)),
    "icr odd": (loop_generators.recall_row, dict(vocab_size=5, seq_len=6)),
    "ncr": (loop_generators.recall_row, dict(vocab_size=5, noise_vocab_size=1, seq_len=8, frac_noise=0.5)),
    "fcr long keys": (
        loop_generators.fuzzy_row,
        dict(vocab_size=5, seq_len=11, k_motif_size=2, v_motif_size=1),
    ),
    "fcr long values": (
        loop_generators.fuzzy_row,
        dict(vocab_size=5, seq_len=11, k_motif_size=1, v_motif_size=2),
    ),
    "mem": (loop_generators.memorization_row, dict(vocab_size=9, seq_len=6)),
    "cmp": (loop_generators.compression_row, dict(vocab_size=4, seq_len=5)),
    "sc": (loop_generators.copying_row, dict(vocab_size=4, seq_len=12, num_tokens_to_copy=3)),
    "state_tracking": (loop_generators.state_tracking_row, dict(group="S3", vocab_size=6, seq_len=3)),
    "mqar": (
        loop_generators.mqar_row,
        dict(vocab_size=6, seq_len=10, num_kv_pairs=2, power_a=0.01, random_non_queries=False),
    ),
    "mqar filled": (
        loop_generators.mqar_row,
        dict(vocab_size=4, seq_len=8, num_kv_pairs=1, power_a=0.5, random_non_queries=True),
    ),
}


def oracle_rows(row_of, task, split, num_rows=NUM_ROWS):
    rng = Random(3)
    rows = [row_of(task, rng, split) for _ in range(num_rows)]
    return tuple(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))


def whole_rows_z(name, split, task=None):
    """z between the oracle's rows of a tiny task and our rows, or the rows of a wrong `task`."""
    row_of, parameters = TINY[name]
    right = make_task(name.split()[0], **parameters)
    ours = (task or right).generate(NUM_ROWS, np.random.default_rng(5), split)
    theirs = oracle_rows(row_of, right, split)
    return row_distribution_z(np.concatenate(ours, axis=1), np.concatenate(theirs, axis=1))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", TINY)
def test_whole_rows_have_the_oracles_frequencies(name, split):
    assert abs(whole_rows_z(name, split)) < MAX_Z


def test_whole_rows_notice_noise_in_the_exempt_slot():
    """One slot in seq_len / 2 is exempt from noise. Without that rule there would be slightly more noise."""
    name = "ncr"
    task = make_task(name, **TINY[name][1])
    task.frac_noise /= 1 - 2 / task.seq_len
    assert whole_rows_z(name, "train", task) > MAX_Z


def test_whole_rows_notice_uniform_distances():
    """Without the power law, queries would stand anywhere."""
    assert whole_rows_z("mqar", "train", make_task("mqar", **TINY["mqar"][1] | {"power_a": 1.0})) > MAX_Z


def test_whole_rows_notice_a_product_in_the_other_order():
    task = make_task("state_tracking", **TINY["state_tracking"][1])
    task.product = task.product.T
    assert whole_rows_z("state_tracking", "train", task) > MAX_Z


FUZZY = dict(vocab_size=16, seq_len=48, k_motif_size=2, v_motif_size=3)


@pytest.mark.parametrize("split", ["train", "test"])
def test_fuzzy_statistics_match_the_oracles(split):
    task = make_task("fcr", **FUZZY)
    theirs = row_statistics(task, *oracle_rows(loop_generators.fuzzy_row, task, split, 4000))
    ours = row_statistics(task, *task.generate(8_000, np.random.default_rng(11), split))
    assert theirs["probe missing"].sum() > 50
    assert not {name: z for name, z in z_scores(ours, theirs).items() if abs(z) > MAX_Z}
