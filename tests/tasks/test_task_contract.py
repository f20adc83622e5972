"""The contract of a task, for every task in `conf/task/`."""

import pytest
from golden_data import TASK_NAMES, task_config
from task_contract import check_everything


@pytest.mark.parametrize("name", TASK_NAMES)
def test_contract(name):
    check_everything(task_config(name), name)
