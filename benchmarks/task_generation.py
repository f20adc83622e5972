"""Seconds to generate every setting of the six MAD tasks: `python -m mixerlab.benchmarks.task_generation`.

Pass task names to time other tasks, e.g. `python -m mixerlab.benchmarks.task_generation icr_challenge`.
"""

import argparse
import time

from hydra import compose, initialize_config_module

from mixerlab.config.settings import build_task, register_resolvers, settings_of
from mixerlab.tasks.base import SPLITS
from mixerlab.tasks.data import make_split

MAD_TASKS = ("icr", "ncr", "fcr", "mem", "cmp", "sc")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.benchmarks.task_generation", description=__doc__.splitlines()[0]
    )
    parser.add_argument("tasks", nargs="*", default=MAD_TASKS, metavar="TASK", help="default: the six MAD tasks")
    given = parser.parse_args()
    register_resolvers()
    seconds = []
    with initialize_config_module("mixerlab.conf", version_base="1.3"):
        for name in given.tasks:
            for setting in settings_of(compose(overrides=[f"+task={name}"]).task):
                task = build_task(compose(overrides=[f"+task={name}", f"task.setting={setting}"]).task)
                start = time.perf_counter()
                for split in SPLITS:
                    make_split(task, split)
                seconds.append(time.perf_counter() - start)
                print(f"{name:<14}{setting:<24}{seconds[-1]:7.2f} s", flush=True)
    print(f"{len(seconds)} settings in {sum(seconds):.1f} s")


if __name__ == "__main__":
    main()
