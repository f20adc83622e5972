"""The splits of a run: separate random streams; datasets in mad-lab's folder layout are read and checked."""

from pathlib import Path

import numpy as np
import pytest
from golden_data import make_task
from task_contract import save_split

from mixerlab.tasks.base import SPLITS
from mixerlab.tasks.data import dataset_folder, load_or_generate
from mixerlab.tasks.generated import make_split

SMALL = dict(seq_len=32, num_train_examples=40, num_val_examples=20, num_test_examples=30)


@pytest.fixture
def task():
    return make_task("icr", **SMALL)


@pytest.fixture
def dataset(task, tmp_path):
    for split in ("train", "test"):
        save_split(make_split(task, split), tmp_path / dataset_folder(task), split)
    return tmp_path


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_splits_come_from_separate_streams():
    # Train and test rows have the same form in this task, so equal streams would give equal rows.
    rows = dict(num_train_examples=500, num_val_examples=500, num_test_examples=500)
    parts = [*load_or_generate(make_task("sc", **rows)).values()]
    parts.append(load_or_generate(make_task("sc", **rows, data_seed=12346))["train"])
    assert len(np.unique(np.concatenate([inputs for inputs, _ in parts]), axis=0)) == 4 * 500


def test_a_dataset_is_read_back_with_our_val_or_its_own(task, dataset):
    data = load_or_generate(task, dataset)
    assert all(same(data[split], make_split(task, split)) for split in SPLITS)
    val = task.generate(20, np.random.default_rng(99), "val")
    save_split(val, dataset / dataset_folder(task), "val")
    assert same(load_or_generate(task, dataset)["val"], val)


def test_test_rows_of_another_length(task, dataset):
    """They are those that the task has at that length; train and val are what they were."""
    longer = make_task("icr", **SMALL, test_seq_len=64)
    data, of_task = load_or_generate(longer), load_or_generate(task)
    assert same(data["train"], of_task["train"]) and same(data["val"], of_task["val"])
    assert same(data["test"], load_or_generate(make_task("icr", **SMALL | {"seq_len": 64}))["test"])
    cached = load_or_generate(longer, dataset)  # whose test rows are of the length of the others
    assert same(cached["train"], load_or_generate(task, dataset)["train"]) and same(cached["test"], data["test"])


UNREADABLE = r"train/inputs.npy: not a readable .npy file"


def saved(path, change):
    np.save(path, change(np.load(path)))


@pytest.mark.parametrize(
    ("name", "write", "change", "message"),
    [
        *(("inputs", Path.write_bytes, lambda c, kept=kept: c[:kept], UNREADABLE) for kept in (0, 100, -8)),
        ("inputs", Path.write_bytes, lambda content: content.replace(b"(40, ", b"(9e9,", 1), UNREADABLE),
        ("inputs", saved, lambda a: a[:-1], r"train/inputs.npy: shape is \(39, 31\), .* say \(40, 31\)"),
        ("inputs", saved, lambda a: a.astype(np.float64), r"train/inputs.npy: dtype is float64, must be int64"),
        ("targets", saved, lambda a: a[::-1], r"train/targets.npy: row 0: position \d+: .*the next token"),
    ],
)
def test_a_file_that_is_damaged_or_wrong_is_named(task, dataset, name, write, change, message):
    path = dataset / dataset_folder(task) / "train" / f"{name}.npy"
    write(path, change if write is saved else change(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        load_or_generate(task, dataset)
