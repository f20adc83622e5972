"""Writes generated datasets in mad-lab's folder layout: `mixerlab export DIR task=icr task.seq_len=64`.

Runs with `task.data_dir=DIR` then train on them. mad-lab reads the same folders (it ignores `val/`). Tasks of your own
are found with `--config-dir`, as in a run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from mixerlab.config.hints import check_choices, check_one_run, refusal, unresolved
from mixerlab.config.project import use_folder
from mixerlab.config.settings import build_task
from mixerlab.tasks.base import SPLITS
from mixerlab.tasks.data import dataset_folder, first_other_file, load_or_generate, save_split
from mixerlab.tasks.generated import WrongRows

_USAGE = "usage: mixerlab export DIR task=<name> [task.setting=... task.<key>=...] [--config-dir DIR]"


def export(data_dir: Path, overrides: Sequence[str], config_dir: Path | None = None) -> Path:
    """Generates the dataset of the task given by `overrides` and returns its folder in `data_dir`.

    Args:
        data_dir: where to write; created if it is not there.
        overrides: `task=<name>`, and `task.<key>=<value>` for its settings.
        config_dir: a folder of your own yamls, as with `--config-dir`; classes are found beside it.

    Raises:
        ValueError: a value that the task cannot have, rows that are not as they must be, or a dataset of that name with
            other rows. Nothing is written.
        hydra.errors.HydraException: an override that Hydra refuses.
    """
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if "=" in override and key != "task" and not key.startswith("task."):
            raise ValueError(f"{override}: export takes task=<name> and task.<key>=<value>")
        check_one_run(override)
    check_choices(overrides)
    search = use_folder(config_dir)
    # The main config has other groups, which do not matter here, and gives the messages of a run.
    with initialize_config_module("mixerlab.conf", version_base="1.3"):
        cfg = compose("config", [*search, *overrides]).task
    task = build_task(cfg)
    if task.test_seq_len is not None:
        raise ValueError(f"task.test_seq_len={task.test_seq_len}: mad-lab's layout has one length: leave it null")
    folder = data_dir / dataset_folder(task)
    try:
        data = load_or_generate(task, allow_shared_rows=cfg.get("allow_shared_rows", False))
    except WrongRows as error:
        raise ValueError(f"task={cfg.name}: {error}") from error
    if (other := first_other_file(data, folder)) is not None:
        raise ValueError(f"{other} holds other rows (mad-lab's own?), and stays: name another folder, or remove it")
    for split in SPLITS:
        save_split(data[split], folder, split)
    return folder


def main(arguments: Sequence[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        print(f"{_USAGE}\n\n{__doc__}", end="")
        return
    parser = argparse.ArgumentParser(usage=_USAGE.removeprefix("usage: "), add_help=False)
    parser.add_argument("given", nargs="*", default=[])
    parser.add_argument("--config-dir", type=Path)
    options = parser.parse_intermixed_args(arguments)
    data_dir, overrides = options.given[:1], options.given[1:]
    if not any(override.startswith("task=") for override in overrides):
        raise SystemExit(f"error: give a folder, and then a task: {_USAGE.removeprefix('usage: ')}")
    try:
        print(export(Path(data_dir[0]), overrides, options.config_dir))
    except (HydraException, MarkedYAMLError) as error:
        raise SystemExit(f"error: {refusal(error)}") from error
    except OmegaConfBaseException as error:  # a value that is ???, or ${nothing}
        raise SystemExit(f"error: {unresolved(error)}") from error
    except OSError as error:
        place = error.filename or data_dir[0]
        raise SystemExit(f"error: {place} cannot be read or written ({error.strerror or error})") from error
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
