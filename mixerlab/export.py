"""Writes generated datasets in mad-lab's folder layout: `mixerlab export DIR task=icr task.seq_len=64`.

Runs with `task.data_dir=DIR` then train on them. mad-lab reads the same folders (it ignores `val/`).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from mixerlab.config.compose import compose
from mixerlab.config.settings import build_task
from mixerlab.tasks.base import SPLITS
from mixerlab.tasks.data import dataset_folder, first_other_file, load_or_generate, save_split
from mixerlab.tasks.generated import WrongRows


def export(data_dir: Path, overrides: Sequence[str], config_dir: Path | None = None) -> Path:
    """Generates the dataset of the task given by `overrides` and returns its folder in `data_dir`.

    Args:
        data_dir: where to write; created if it is not there.
        overrides: `task=<name>`, and `task.<key>=<value>` for its settings.
        config_dir: a folder of your own yamls, as with `--config-dir`; classes are found beside it.

    Raises:
        ValueError: as `compose`; a value that the task cannot have, rows that are not as they must be, or a dataset of
            that name with other rows. Nothing is written.
    """
    cfg = compose(*overrides, config_dir=config_dir).task
    task = build_task(cfg)
    if task.test_seq_len is not None:
        raise ValueError(f"task.test_seq_len={task.test_seq_len}: mad-lab's layout has one length: leave it null")
    folder = data_dir / dataset_folder(task)
    try:
        data = load_or_generate(task, allow_shared_rows=cfg.allow_shared_rows)
    except WrongRows as error:
        raise ValueError(f"task={cfg.name}: {error}") from error
    if (other := first_other_file(data, folder)) is not None:
        raise ValueError(f"{other} holds other rows (mad-lab's own?), and stays: name another folder, or remove it")
    for split in SPLITS:
        save_split(data[split], folder, split)
    return folder


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="mixerlab export", description=__doc__)
    parser.add_argument("data_dir", type=Path, metavar="DIR", help="where to write")
    parser.add_argument("overrides", nargs="+", metavar="task=NAME", help="and task.KEY=VALUE for its settings")
    parser.add_argument("--config-dir", type=Path, help="your own folder of yamls; classes are found beside it")
    args = parser.parse_intermixed_args(arguments)
    try:
        print(export(args.data_dir, args.overrides, args.config_dir))
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
