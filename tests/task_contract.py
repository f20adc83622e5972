"""What every task must do, as checks that a test applies to one of them."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from hydra.utils import get_class
from omegaconf import DictConfig

from mixerlab.config.settings import build_task, setting_name, settings_of
from mixerlab.tasks.base import SPLITS, Task

IMPOSSIBLE = {  # of the parameters that every task has
    "vocab_size": 0,
    "seq_len": -2,
    "num_train_examples": 0,
    "num_val_examples": 1.5,
    "num_test_examples": True,
    "data_seed": -1,
    "test_seq_len": 0,
}


def save_split(arrays: tuple[np.ndarray, np.ndarray], folder: Path, split: str) -> None:
    """Writes one split of a dataset as mad-lab does."""
    (folder / split).mkdir(parents=True, exist_ok=True)
    for name, array in zip(("inputs", "targets"), arrays, strict=True):
        np.save(folder / split / f"{name}.npy", array)


def changed(config: DictConfig, **changes) -> DictConfig:
    """A copy of a task's config with some keys set, as the command line would set them."""
    config = deepcopy(config)
    for key, value in changes.items():
        config[key] = value
    return config


def check_settings(config: DictConfig, name: str) -> None:
    """One name for file, config and table; every setting gives its task what it says, and is told from the others.

    Each setting's rows keep the task's own rules, and something in every row is scored.
    """
    assert issubclass(get_class(config["_target_"]), Task)
    assert config.name == name
    for setting, parameters in settings_of(config).items():
        chosen = changed(config, setting=setting)
        task = build_task(chosen)
        expected = {**config.get("baseline", {}), **parameters}
        assert {key: getattr(task, key) for key in expected} == expected
        assert setting_name(chosen) == setting
        for split in SPLITS:
            inputs, targets = task.generate(16, np.random.default_rng(1), split)
            assert inputs.shape == targets.shape == (16, task.input_length)
            task.check(inputs, targets, split)
            assert (targets >= 0).any(axis=1).all(), f"{setting}, {split}: a row has no target"


def check_rows_come_from_the_generator(config: DictConfig) -> None:
    """The same generator gives the same rows, whatever the state of NumPy's own, which stays as it was."""
    task = build_task(config)
    np.random.seed(0)  # noqa: NPY002
    first = task.generate(20, np.random.default_rng(4), "test")
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    again = task.generate(20, np.random.default_rng(4), "test")
    other = task.generate(20, np.random.default_rng(5), "test")
    np.testing.assert_array_equal(first, again)
    assert (first[0] != other[0]).any()
    np.random.seed(0)  # noqa: NPY002
    np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002


def check_impossible_parameters(config: DictConfig) -> None:
    for key, value in IMPOSSIBLE.items():
        with pytest.raises(ValueError, match=f"task.{key}={value}:? must be a whole number"):
            build_task(changed(config, **{key: value}))


def check_test_rows_of_another_length(config: DictConfig) -> None:
    """Twice the length for the test rows: they keep the rules of the task at that length. An auto-encoder refuses."""
    longer = changed(config, test_seq_len=2 * config.seq_len)
    if get_class(config["_target_"]).autoencode:
        with pytest.raises(ValueError, match=r"test_seq_len=.*: an auto-encoder rebuilds rows"):
            build_task(longer)
        return
    task = build_task(longer)
    assert (task.for_split("train"), task.for_split("val")) == (task, task) and task.seq_len == config.seq_len
    of_test = task.for_split("test")
    assert of_test.seq_len == 2 * config.seq_len and of_test.input_length > task.input_length
    of_test.check(*of_test.generate(16, np.random.default_rng(1), "test"), "test")


def check_everything(config: DictConfig, name: str) -> None:
    """The whole contract of the task that `config`, composed from the yaml `name`, describes."""
    check_settings(config, name)
    check_rows_come_from_the_generator(config)
    check_test_rows_of_another_length(config)
    check_impossible_parameters(config)
