"""What is compared with mad-lab, and on which data: writes both.

    python results/parity/cells.py DATA_DIR LIST.csv [--points N] [--seeds N ...] [--most-rows N]
        [--extra task.KEY=VALUE ...]

Needs the repository root on PYTHONPATH. DATA_DIR gets each cell's dataset in mad-lab's layout; runs of both sides read
it. LIST.csv gets a line for each cell at each point of mad-lab's grid of rates and weight decays, in the order to run
them: `overrides` are the arguments of run.py for all seeds of ours, and `results/parity/theirs.py` trains each seed of
the line by itself. `--points 1` is the first point only, the default of mad-lab's train.py. `--seeds 3 4 5` lists other
seeds than 0, 1 and 2, and `--most-rows` only the cells with at most so many training rows, which cost little.
"""

import argparse
import csv
from pathlib import Path

import mixerlab
from mixerlab.config.settings import build_task
from mixerlab.tasks.data import dataset_folder, make_split, save_split

TASKS = ("icr", "ncr", "fcr", "mem", "cmp", "sc")
# Of each task the cheapest setting that parts mixers: those of the screen of recipes (results/screen/design.py).
HARD = {
    "icr": "num_train_examples-800",
    "ncr": "num_train_examples-1600",
    "fcr": "num_train_examples-3200",
    "mem": "vocab_size-4096",
    "cmp": "num_train_examples-3200",
    "sc": "num_train_examples-800",
}
CELLS = (  # the longest first
    *(("mamba", task, "baseline") for task in TASKS),
    *(("attn", task, "baseline") for task in TASKS),
    *(("attn", task, setting) for task, setting in HARD.items()),
)
POINTS = ((5e-4, 0.0), (1e-3, 0.0), (1e-4, 0.0), (5e-4, 0.1), (1e-3, 0.1), (1e-4, 0.1))  # learning rate, weight decay
SEEDS = (0, 1, 2)
COLUMNS = ("unit", "mixer", "task", "setting", "lr", "weight_decay", "seeds", "overrides")


def task_overrides(task: str, setting: str, extra: list[str]) -> list[str]:
    return [f"task={task}", f"task.setting={setting}", *extra]


def task_of(overrides: list[str]):
    """The task that overrides of `experiment=madlab` describe."""
    return build_task(mixerlab.compose("experiment=madlab", "mixer=attn", *overrides).task)


def export(data_dir: Path, overrides: list[str]) -> None:
    """Writes the dataset, unless it is there."""
    task = task_of(overrides)
    folder = data_dir / dataset_folder(task)
    if not (folder / "test").exists():
        for split in ("val", "train", "test"):
            save_split(make_split(task, split), folder, split)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("list", type=Path)
    parser.add_argument("--points", type=int, default=len(POINTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--most-rows", type=int, default=None, help="training rows of a listed cell")
    parser.add_argument("--extra", nargs="*", default=[], metavar="task.KEY=VALUE")
    given = parser.parse_args()
    for task, setting in sorted({cell[1:] for cell in CELLS}):
        export(given.data_dir, task_overrides(task, setting, given.extra))
    cells = [
        cell
        for cell in CELLS
        if given.most_rows is None
        or task_of(task_overrides(*cell[1:], given.extra)).num_train_examples <= given.most_rows
    ]
    with given.list.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for lr, weight_decay in POINTS[: given.points]:
            for mixer, task, setting in cells:
                seeds = ",".join(map(str, given.seeds))
                overrides = [
                    *("experiment=madlab", f"mixer={mixer}", *task_overrides(task, setting, given.extra)),
                    f"task.data_dir={given.data_dir}",
                    *(f"optimizer.lr={lr}", f"optimizer.weight_decay={weight_decay}", f"seed=[{seeds}]"),
                ]
                cell = {"mixer": mixer, "task": task, "setting": setting, "lr": lr, "weight_decay": weight_decay}
                unit = f"{mixer} {task} {setting} {lr} {weight_decay}"
                writer.writerow({"unit": unit, **cell, "seeds": seeds, "overrides": " ".join(overrides)})


if __name__ == "__main__":
    main()
