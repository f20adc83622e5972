"""Writes generated datasets in mad-lab's folder layout: `mixerlab export DIR task=icr task.seq_len=64`.

Runs with `task.data_dir=DIR` then train on them. mad-lab reads the same folders (it ignores `val/`).
"""

import sys
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.errors import HydraException

from mixerlab.tasks.base import SPLITS
from mixerlab.tasks.data import dataset_folder, make_split, save_split
from mixerlab.tasks.settings import build_task, register_resolvers

_USAGE = "usage: mixerlab export DIR task=<name> [task.setting=... task.<key>=...]"


def export(data_dir: Path, overrides: list[str]) -> Path:
    """Generates the dataset of the task given by `overrides` and returns its folder in `data_dir`."""
    register_resolvers()
    # Composed without the main config, whose other groups do not matter here. So `task` is a new group, added with a +.
    overrides = [f"+{override}" if override.startswith("task=") else override for override in overrides]
    with initialize_config_module("mixerlab.conf", version_base="1.3"):
        task = build_task(compose(overrides=overrides).task)
    if task.test_seq_len is not None:
        raise ValueError(f"task.test_seq_len={task.test_seq_len}: mad-lab's layout has one length: leave it null")
    folder = data_dir / dataset_folder(task)
    for split in SPLITS:
        save_split(make_split(task, split), folder, split)
    return folder


def main(arguments: list[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        print(f"{_USAGE}\n\n{__doc__}", end="")
        return
    if len(arguments) < 2 or not any(argument.startswith("task=") for argument in arguments[1:]):
        raise SystemExit(_USAGE)
    try:
        print(export(Path(arguments[0]), arguments[1:]))
    except (ValueError, HydraException, OSError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
