"""The contract of a task, for every task in `conf/task/`."""

import pytest
from golden_data import TASK_NAMES, task_config
from task_contract import check_everything

from mixerlab.config.compose import compose
from mixerlab.config.settings import build_task


@pytest.mark.parametrize("name", TASK_NAMES)
def test_contract(name):
    check_everything(task_config(name), name)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_quickstart_has_small_sizes_of_it(name):
    task = build_task(compose(f"task={name}", "experiment=quickstart").task)
    assert task.vocab_size <= 256 and task.seq_len == 32 and task.num_train_examples == 3200
