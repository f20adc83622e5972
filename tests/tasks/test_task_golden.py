"""mad-lab's own rows obey our rules, and our rows have the same distribution as mad-lab's."""

import numpy as np
import pytest
from golden_data import GOLDEN, every_golden
from row_statistics import MAX_Z, row_statistics, z_scores

from mixerlab.tasks.base import IGNORE_INDEX, Task, split_rng
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


def keys_without_replacement(task, n, rng, split):
    inputs, targets = task.generate(n, rng, split)
    shape = (n, -(-inputs.shape[1] // (2 * task.num_keys)), task.num_keys)
    keys = np.argsort(rng.random(shape), axis=2).reshape(n, -1)
    inputs[:, ::2] = keys[:, : inputs[:, ::2].shape[1]]
    return inputs, targets


def one_key_per_value(task, n, rng, split):
    inputs, targets = task.generate(n, rng, split)
    value_of = task.num_keys + np.argsort(rng.random((n, task.num_keys)), axis=1)
    inputs[:, 1::2] = np.take_along_axis(value_of, inputs[:, :-1:2], axis=1)
    return inputs, targets


def probe_by_frequency(task, n, rng, split):
    inputs, targets = task.generate(n, rng, split)
    slot = rng.integers(inputs.shape[1] // 2, size=n)
    inputs[:, -1] = inputs[np.arange(n), 2 * slot]
    return inputs, targets


def only_the_probe_scored(task, n, rng, split):
    inputs, targets = task.generate(n, rng, split)
    targets[:, :-1] = IGNORE_INDEX
    return inputs, targets


def train_keys_in_test(task, n, rng, split):
    return task.generate(n, rng, "train")


def test_keys_in_train(task, n, rng, split):
    return task.generate(n, rng, "test")


test_keys_in_train.__test__ = False


def short_values(task, n, rng, split):
    task.v_motif_size -= 1
    return task.generate(n, rng, split)


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


def rising_gaps(task, n, rng, split):
    """The right gaps, smallest first."""
    inputs, targets = task.generate(n, rng, split)
    data = targets[:, -task.num_tokens_to_copy :]
    position = np.nonzero(inputs < task.blank_token)[1].reshape(data.shape)
    gaps = np.sort(np.diff(position, axis=1, prepend=-1) - 1, axis=1)
    inputs[:, : -data.shape[1] - 1] = task.blank_token
    np.put_along_axis(inputs, np.arange(data.shape[1]) + np.cumsum(gaps, axis=1), data, axis=1)
    return inputs, targets


def sticky_tokens(task, n, rng, split):
    """Sometimes a token repeats its left neighbour."""
    inputs, targets = task.generate(n, rng, split)
    stays = rng.random((n, task.seq_len - 2)) < 0.1
    inputs[:, 1:-1] = np.where(stays, inputs[:, :-2], inputs[:, 1:-1])
    return inputs, targets


def probe_never_shown(task, n, rng, split):
    """Replaces the probe's key by a random one, which few contexts have shown."""
    inputs, targets = task.generate(n, rng, split)
    others = rng.permuted(np.tile(np.arange(task.num_keys), (n, 1)), axis=1)[:, : task.k_motif_size]
    is_key = inputs < task.num_keys
    end = task.seq_len - np.argmax(is_key[:, ::-1], axis=1)
    for i in range(task.k_motif_size):
        inputs[np.arange(n), end - task.k_motif_size + i] = others[:, i]
    return inputs, targets


WRONG = [  # mad-lab's file, split, the wrong generator, and the statistics that notice it
    ("icr_v64_l128", "train", skewed_tokens, ["tokens"]),
    ("icr_v64_l128", "train", keys_without_replacement, ["distinct keys", "repeated keys"]),
    ("icr_v64_l128", "train", one_key_per_value, ["shared values"]),
    ("icr_v64_l128", "train", probe_by_frequency, ["probe showings", "probe's first slot"]),
    ("ncr_v32_n16_l128_f0.2", "train", skewed_tokens, ["tokens"]),
    ("ncr_v32_n16_l128_f0.2", "test", more_noise, ["noise slots", "scored positions"]),
    ("fcr_v16_l128_k3_v3", "test", skewed_tokens, ["tokens"]),
    ("fcr_v16_l128_k3_v3", "test", early_probe, ["probe's first place"]),
    ("fcr_v16_l128_k3_v3", "test", train_keys_in_test, ["key length 1", "key length 2", "key length 3"]),
    ("fcr_v16_l128_k3_v3", "test", train_keys_in_test, ["distinct keys", "repeated keys", "pairs"]),
    ("fcr_v16_l128_k3_v3", "train", test_keys_in_train, ["probe's key length", "key length 1"]),
    ("fcr_v16_l128_k3_v3", "test", short_values, ["value length 1", "value length 2", "value length 3", "pads"]),
    ("fcr_v16_l128_k3_v3", "test", only_the_probe_scored, ["scored positions"]),
    ("fcr_v16_l128_k3_v3", "test", probe_never_shown, ["probe missing", "probe showings"]),
    ("mem_v256_l32", "train", skewed_tokens, ["tokens"]),
    ("mem_v256_l32", "train", keys_without_replacement, ["distinct keys"]),
    ("cmp_v16_l32", "train", skewed_tokens, ["tokens"]),
    ("cmp_v16_l32", "train", sticky_tokens, ["equal neighbours", "rises"]),
    ("sc_v16_l256_c16", "test", skewed_tokens, ["tokens"]),
    ("sc_v16_l256_c16", "test", blanks_anywhere, ["gap sizes, squared", "gaps of 0", "largest gap"]),
    ("sc_v16_l256_c16", "test", rising_gaps, ["first gap", "last gap", "neighbouring gaps"]),
]


@pytest.mark.parametrize(
    ("name", "split", "wrong", "noticed_by"), WRONG, ids=[f"{row[0]}-{row[2].__name__}" for row in WRONG]
)
def test_a_wrong_generator_is_noticed(name, split, wrong, noticed_by):
    z = golden_z(GOLDEN[name], split, wrong)
    z["tokens"] = max((z[key] for key in z if key.startswith("tokens")), key=abs)
    assert {key: z[key] for key in noticed_by if abs(z[key]) <= MAX_Z} == {}


def test_every_statistic_notices_some_wrong_generator():
    noticing, existing = set(), set()
    for name, split, _, noticed_by in WRONG:
        code = GOLDEN[name].manifest["task_shorthand"].replace("NR", "CR")
        noticing |= {(code, key) for key in noticed_by}
        existing |= {(code, key) for key in row_statistics(GOLDEN[name].task, *GOLDEN[name].arrays(split))}
    # In tasks without repeated keys, the number of scored positions is fixed by a rule and not random.
    existing = {key for key in existing if not key[1].startswith("tokens")}
    existing -= {(code, "scored positions") for code in ("M", "C", "SC")}
    assert existing <= noticing
