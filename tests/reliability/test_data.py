"""Data read from a folder are part of a run's identity, and val may not repeat what the model has seen."""

import shutil

import numpy as np
import pytest
from command_line import TINY
from task_contract import save_split

import mixerlab
from mixerlab.config.compose import compose
from mixerlab.config.settings import build_task
from mixerlab.config.values import checked
from mixerlab.records.identity import run_id
from mixerlab.records.schema import labels_of_replicas
from mixerlab.tasks.base import SPLITS
from mixerlab.tasks.data import dataset_folder, load_or_generate
from mixerlab.tasks.generated import make_split

# Long rows of a large vocabulary: none is drawn twice by chance.
CMP = ("mixer=attn", "task=cmp", "task.vocab_size=64", "task.seq_len=32", *TINY[2:])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    task = build_task(compose(*CMP).task)
    for split in SPLITS:
        save_split(make_split(task, split), folder / dataset_folder(task), split)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def config_of(data_dir, *more):
    task, config, _ = checked(compose(*CMP, f"task.data_dir={data_dir}", *more))
    return task, config


def test_the_data_and_not_their_place_tell_a_run(saved, copy):
    (_, config), (_, elsewhere) = config_of(saved), config_of(copy)
    assert run_id(config) == run_id(elsewhere)
    (labels, *_) = labels_of_replicas(config)
    assert labels == labels_of_replicas(elsewhere)[0]
    assert len(labels["hparams"]["task.data_sha256"]) == 64
    (path,) = copy.glob("t-*/train/inputs.npy")
    np.save(path, np.load(path)[::-1])
    assert run_id(config) != run_id(config_of(copy)[1])


def test_val_rows_that_are_test_rows_are_refused_unless_allowed(copy, tmp_path):
    (test,) = copy.glob("t-*/test")
    shutil.copytree(test, test.with_name("val"), dirs_exist_ok=True)
    results = tmp_path / "results"
    with pytest.raises(ValueError, match=r"test rows begin as those of val: .*task.allow_shared_rows=true"):
        mixerlab.run(*CMP, f"task.data_dir={copy}", f"results_dir={results}")
    assert not results.exists()
    task, config = config_of(copy, "task.allow_shared_rows=true")
    assert len(load_or_generate(task, copy, allow_shared_rows=True)["val"][0]) == 16
    assert run_id(config) == run_id(config_of(copy)[1])  # whether it is allowed cannot change a result
