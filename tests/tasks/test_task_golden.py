"""mad-lab's own rows obey our rules, and our rows have the same distribution as mad-lab's."""

import numpy as np
import pytest
from golden_data import GOLDEN, every_golden
from row_statistics import MAX_Z, row_statistics, z_scores

from mixerlab.tasks.base import Task, split_rng
from mixerlab.tasks.data import dataset_folder

NUM_ROWS = 1500  # of ours: so many that mad-lab's 256 rows dominate the sampling error


def golden_z(golden, split, generate=None):
    """z of every statistic between mad-lab's rows and our rows, or the rows of a wrong `generate`."""
    rows = (generate or Task.generate)(golden.task, NUM_ROWS, split_rng(7, split), split)
    task = golden.task
    return z_scores(row_statistics(task, *rows), row_statistics(task, *golden.arrays(split)))


@every_golden
@pytest.mark.parametrize("split", ["train", "test"])
def test_rules_accept_mad_labs_rows(golden, split):
    golden.task.check(*golden.arrays(split), split)


@every_golden
@pytest.mark.parametrize("split", ["train", "test"])
def test_distribution_is_mad_labs(golden, split):
    unlike = {name: z for name, z in golden_z(golden, split).items() if abs(z) > MAX_Z}
    assert not unlike


@every_golden
def test_folder_is_named_as_mad_lab_names_it(golden):
    assert dataset_folder(golden.task) == golden.manifest["madlab_dir"]


@pytest.mark.parametrize("golden", [g for g in GOLDEN.values() if g.manifest["task_shorthand"] == "M"])
def test_memorization_map_is_mad_labs(golden):
    with np.load(golden.path) as file:
        np.testing.assert_array_equal(golden.task.value_of[file["kv_keys"]], file["kv_values"])


# The files of which this repository has a copy.
SMALL_SETS = ("icr_v64_l128", "ncr_v32_n16_l128_f0.2", "fcr_v16_l128_k3_v3", "mem_v256_l32", "cmp_v16_l32")
SMALL_SETS += ("sc_v16_l256_c16",)

# Wrong generators: each makes a mistake that a certain statistic must notice.


class _SkewedGenerator(np.random.Generator):
    """Draws low integers more often than high ones."""

    def integers(self, low, high=None, size=None):
        if high is None:
            low, high = 0, low
        if size is None:
            size = np.shape(high)
        return low + np.floor((high - low) * self.random(size) ** 1.3).astype(np.int64)


class _EarlyProbe(np.random.Generator):
    """Draws 0 for draws with one bound per row. In fuzzy recall that is the place of the probe."""

    def integers(self, low, high=None, size=None):
        return np.zeros_like(low) if isinstance(low, np.ndarray) else super().integers(low, high, size)


def early_probe(task, n, rng, split):
    return task.generate(n, _EarlyProbe(rng.bit_generator), split)


def skewed_tokens(task, n, rng, split):
    return task.generate(n, _SkewedGenerator(rng.bit_generator), split)


def more_noise(task, n, rng, split):
    task.frac_noise *= 1.2
    return task.generate(n, rng, split)


def probe_by_frequency(task, n, rng, split):
    inputs, targets = task.generate(n, rng, split)
    slot = rng.integers(inputs.shape[1] // 2, size=n)
    inputs[:, -1] = inputs[np.arange(n), 2 * slot]
    return inputs, targets


def train_keys_in_test(task, n, rng, split):
    return task.generate(n, rng, "train")


def blanks_anywhere(task, n, rng, split):
    """Puts the data at uniformly chosen positions instead of after multinomial gaps."""
    inputs, targets = task.generate(n, rng, split)
    c = task.num_tokens_to_copy
    last = task.seq_len - c - 2
    places = np.argsort(rng.random((n, last)), axis=1)[:, : c - 1]
    inputs[:, : last + 1] = task.blank_token
    np.put_along_axis(inputs, places, targets[:, -c:-1], axis=1)
    inputs[:, last] = targets[:, -1]
    return inputs, targets


def sticky_tokens(task, n, rng, split):
    """Sometimes a token repeats its left neighbour."""
    inputs, targets = task.generate(n, rng, split)
    stays = rng.random((n, task.seq_len - 2)) < 0.1
    inputs[:, 1:-1] = np.where(stays, inputs[:, :-2], inputs[:, 1:-1])
    return inputs, targets


WRONG = [  # mad-lab's file, split, the wrong generator, and the statistics that notice it
    *((name, "test", skewed_tokens, ["tokens"]) for name in GOLDEN if name in SMALL_SETS),
    ("icr_v64_l128", "train", probe_by_frequency, ["probe showings", "probe's first slot"]),
    ("ncr_v32_n16_l128_f0.2", "test", more_noise, ["noise slots", "scored positions"]),
    ("fcr_v16_l128_k3_v3", "test", early_probe, ["probe's first place"]),
    ("fcr_v16_l128_k3_v3", "test", train_keys_in_test, ["key length 1", "distinct keys", "repeated keys", "pairs"]),
    ("cmp_v16_l32", "train", sticky_tokens, ["equal neighbours", "rises"]),
    ("sc_v16_l256_c16", "test", blanks_anywhere, ["gap sizes, squared", "gaps of 0", "largest gap"]),
]


@pytest.mark.parametrize(
    ("name", "split", "wrong", "noticed_by"), WRONG, ids=[f"{row[0]}-{row[2].__name__}" for row in WRONG]
)
def test_a_wrong_generator_is_noticed(name, split, wrong, noticed_by):
    z = golden_z(GOLDEN[name], split, wrong)
    z["tokens"] = max((z[key] for key in z if key.startswith("tokens")), key=abs)
    assert {key: z[key] for key in noticed_by if abs(z[key]) <= MAX_Z} == {}
