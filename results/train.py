"""Trains the runs of lists in their order, in several processes, for so many seconds; goes on the next time.

    python results/train.py LIST.csv ... --processes 6 --gpus 2 --seconds 540 --results-dir DIR --archive FILE --fit

Needs the repository root on PYTHONPATH. A list has the columns `unit`, `overrides` and, if known, `seconds`
(results/plan.py and results/screen/design.py write such lists). Finished runs are skipped. Runs that have begun when
the time is over are killed, and go on from a checkpoint the next time on the same machine; with --fit, none begins
that would not end in time. The seconds of results/plan.py are those of four processes on an H200: --pace says how many
times as long a run takes here, such as 0.6 with two processes on an H100. With --archive, FILE is restored before and
holds all finished runs afterwards, so that another machine goes on with it. It is also written now and then, and when
the script is told to stop (SIGTERM, Ctrl-C). What the processes print is in DIR/logs, and the tracebacks of runs that
failed in DIR/errors.txt.
"""

import argparse
import csv
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NoReturn

from mixerlab.records.archive import pack, restore
from mixerlab.records.files import is_finished
from mixerlab.records.text import counted
from mixerlab.results.portions import Job, Outcome, ended_well, work_through


def check_lists(parser: argparse.ArgumentParser, paths: Iterable[str]) -> None:
    """Ends the process with a message of `parser` if one of the lists is not there."""
    for path in paths:
        if not Path(path).exists():
            parser.error(f"there is no list {path}: results/plan.py writes lists")


def jobs_of(path: str, pace: float = 1.0) -> list[Job]:
    """The runs of a list, in its order; `pace` times its seconds."""
    with open(path, newline="") as file:
        return [
            Job(row["overrides"], row["unit"], pace * float(row.get("seconds") or 0), row["overrides"])
            for row in csv.DictReader(file)
        ]


def trainer(results: Path, common: list[str]) -> Callable[[str], None]:
    """What trains one run, in a process of its own, which writes what it prints to `results/logs`."""
    log = results / "logs" / f"{os.getpid()}.txt"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as file:
        for stream in (1, 2):  # also of what is not Python
            os.dup2(file.fileno(), stream)

    import mixerlab

    def train(overrides: str) -> None:
        print(overrides, flush=True)
        mixerlab.run(
            *overrides.split(),
            f"results_dir={results}",
            "trainer.progress=false",
            "trainer.keep_weights=none",
            *common,
        )

    return train


class Archive:
    """The finished runs of a results folder in one file, written again while more of them end."""

    LEAST_S = 60.0  # between two writings
    SHARE = 0.05  # of the time, at most: writing a thousand runs takes some twenty seconds

    def __init__(self, results: Path, file: Path):
        self.results, self.file = results, file
        self.due = time.monotonic() + self.LEAST_S

    def write(self) -> None:
        if any(is_finished(folder) for folder in self.results.glob("runs/*/")):
            began = time.monotonic()
            number = pack(self.results, self.file)
            self.due = time.monotonic() + max(self.LEAST_S, (time.monotonic() - began) / self.SHARE)
            print(f"{counted(number, 'finished run')} in {self.file}", flush=True)

    def write_if_due(self) -> None:
        if time.monotonic() > self.due:
            self.write()


def stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="+", metavar="LIST.csv")
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--results-dir", default="results")
    parser.add_argument("--archive", type=Path, help="restored before, written afterwards")
    parser.add_argument("--fit", action="store_true", help="begin no run that would not end in time")
    parser.add_argument("--pace", type=float, default=1.0, metavar="FACTOR", help="of the seconds in the lists")
    parser.add_argument("--extra", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    for name in ("processes", "seconds", "pace"):
        if not getattr(given, name) > 0:
            parser.error(f"--{name} {getattr(given, name)} must be above 0")
    check_lists(parser, given.lists)
    jobs = [job for path in given.lists for job in jobs_of(path, given.pace)]
    shortest = min((job.seconds for job in jobs), default=0)
    if given.fit and shortest > given.seconds:
        parser.error(f"--seconds {given.seconds:g}: none of {len(jobs)} runs fits, the shortest takes {shortest:g} s")
    results = Path(given.results_dir)
    results.mkdir(parents=True, exist_ok=True)
    archive = Archive(results, given.archive) if given.archive else None
    if given.archive and given.archive.exists():
        restored, there = restore(given.archive, results)
        print(f"{counted(restored, 'run')} restored, {there} already there")
    signal.signal(signal.SIGTERM, stop)

    def note(outcome: Outcome) -> None:
        if outcome.error:
            with (results / "errors.txt").open("a") as file:
                file.write(f"{outcome.job.name}\n{outcome.error}\n")
        if archive:
            archive.write_if_due()

    try:
        ended = work_through(
            jobs,
            partial(trainer, results, given.extra),
            processes=given.processes,
            gpus=given.gpus,
            seconds=given.seconds,
            fit=given.fit,
            done=note,
        )
    finally:
        if archive:
            archive.write()
    return not ended_well(ended)


if __name__ == "__main__":
    sys.exit(main())
