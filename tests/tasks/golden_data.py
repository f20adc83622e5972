"""mad-lab's own rows, and the tasks of `conf/task/`, for the tests in this folder."""

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from every_mixer import CONF
from omegaconf import DictConfig
from task_contract import changed

from mixerlab.config.compose import compose
from mixerlab.config.settings import build_task
from mixerlab.tasks.base import Task

REPO = Path(__file__).resolve().parents[2]
# Those that generate their rows: text is in `test_text.py`.
TASK_NAMES = sorted(path.stem for path in (CONF / "task").glob("*.yaml") if path.stem != "text")
_NAME_OF_CODE = {"CR": "icr", "NR": "ncr", "FR": "fcr", "M": "mem", "C": "cmp", "SC": "sc"}


@cache
def _composed(name: str) -> DictConfig:
    return compose(f"task={name}").task


def task_config(name: str, **changes) -> DictConfig:
    """The config of `conf/task/<name>.yaml` with `changes` applied, as the command line would apply them."""
    return changed(_composed(name), **changes)


def make_task(name: str, **parameters) -> Task:
    """The task of `conf/task/<name>.yaml` with `parameters` set directly."""
    return build_task(task_config(name, **parameters))


class Golden(NamedTuple):
    """One file of mad-lab's rows, and what its manifest says of it."""

    path: Path
    manifest: dict

    @property
    def task(self) -> Task:
        name = _NAME_OF_CODE[self.manifest["task_shorthand"]]
        sizes = {"num_train_examples": self.manifest["n_train"], "num_test_examples": self.manifest["n_test"]}
        given = self.manifest | sizes
        return make_task(name, **{key: given[key] for key in task_config(name) if key in given and key != "name"})

    def arrays(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        with np.load(self.path) as file:
            return tuple(file[f"{split}_{name}"].astype(np.int64) for name in ("inputs", "targets"))


GOLDEN: dict[str, Golden] = {}
for folder in (REPO / "tests" / "data" / "golden", REPO.parent / "shared" / "golden"):
    if folder.is_dir():
        for entry in json.loads((folder / "manifest.json").read_text())["settings"]:
            GOLDEN.setdefault(entry["name"], Golden(folder / entry["file"], entry))
every_golden = pytest.mark.parametrize("golden", GOLDEN.values(), ids=GOLDEN)
