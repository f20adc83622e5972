"""Trains the runs of lists in their order, in several processes, for so many seconds; goes on the next time.

    python results/train.py LIST.csv ... --processes 6 --gpus 2 --seconds 540 --results-dir DIR --archive FILE --fit

Needs the repository root on PYTHONPATH. A list has the columns `unit`, `overrides` and, if known, `seconds`
(results/plan.py and results/screen/design.py write such lists). Finished runs are skipped. Runs that have begun when
the time is over are killed, and go on from a checkpoint the next time on the same machine; with --fit, none begins
that would not end in time. With --archive, FILE is restored before and holds all finished runs afterwards, so that
another machine goes on with it.
"""

import argparse
import csv
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mixerlab.results.portions import Job, Outcome, ended_well, work_through
from mixerlab.sweeps.archive import pack, restore


def jobs_of(path: str) -> list[Job]:
    """The runs of a list, in its order."""
    with open(path, newline="") as file:
        return [
            Job(row["overrides"], row["unit"], float(row.get("seconds") or 0), row["overrides"])
            for row in csv.DictReader(file)
        ]


def trainer(common: list[str]) -> Callable[[str], None]:
    """What trains one run, in a process of its own."""
    import logging
    import warnings

    import mixerlab

    logging.disable(logging.INFO)
    warnings.filterwarnings("ignore")

    def train(overrides: str) -> None:
        mixerlab.run(*overrides.split(), "trainer.progress=false", "trainer.keep_weights=none", *common)

    return train


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="+", metavar="LIST.csv")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--results-dir", default="results")
    parser.add_argument("--archive", type=Path, help="restored before, written afterwards")
    parser.add_argument("--fit", action="store_true", help="begin no run that would not end in time")
    parser.add_argument("--extra", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    results = Path(given.results_dir)
    results.mkdir(parents=True, exist_ok=True)
    if given.archive and given.archive.exists():
        restored, there = restore(given.archive, results)
        print(f"{restored} runs restored, {there} were there")

    def note(outcome: Outcome) -> None:
        if outcome.error:
            with (results / "errors.txt").open("a") as file:
                file.write(f"{outcome.job.name}\n{outcome.error}\n")

    ended = work_through(
        [job for path in given.lists for job in jobs_of(path)],
        partial(trainer, [f"results_dir={results}", *given.extra]),
        processes=given.processes,
        gpus=given.gpus,
        seconds=given.seconds,
        fit=given.fit,
        done=note,
    )
    if given.archive and any((results / "runs").glob("*/record.json")):
        print(f"{pack(results, given.archive)} finished runs in {given.archive}")
    return not ended_well(ended)


if __name__ == "__main__":
    sys.exit(main())
