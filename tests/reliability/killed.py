"""Stops a command at random file operations, runs it again, and says what is wrong then.

`python killed.py FOLDER WAY=NUMBER,... ARGUMENT...` prints one JSON object: how many operations the command has, how
many records it leaves, and what went wrong. The operations at which it stops are drawn so that they differ in kind and
in the kind of their file (a record, a checkpoint, ...). A process that has run the command forks for each run: what
comes first in a process takes longer than the runs.

If the last argument is `force=true`, what is stopped is a training by force of a run that is finished and had other
results. The command without it must then leave the run as it was or as the whole training by force makes it.

An operation is a file opened for writing, a write, an fsync, a rename, a link, a removal or a new folder, in the
results folder. The ways to stop just before one: KILL, TERM and INT send that signal, before a write when half of it is
written; FULL makes this operation and all later ones that need space fail, as on a full disk.
"""

import errno
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from command_line import run_py  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from mixerlab.records.atomic import _LEFTOVER, replace_file  # noqa: E402
from mixerlab.sweeps.figures import curves, sheet  # noqa: E402
from mixerlab.sweeps.report import report  # noqa: E402
from mixerlab.training import fit  # noqa: E402

WRITES = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate"}
NEEDS_NO_SPACE = {"os.remove", "os.rmdir", "os.truncate"}
# The exit status of a command that was stopped in each way.
STATUS = {"KILL": {-9}, "TERM": {128 + 15}, "INT": {128 + 2}, "FULL": {0, 1}}


def save_quickly(figure, stem, formats=("png",)):
    paths = [stem.with_suffix(f".{name}") for name in formats]
    for path in paths:
        replace_file(path, b"figure")
    return paths


def train_otherwise() -> None:
    """From now on, replicas see their rows in another order, as if by other code."""
    usual = fit.PopulationData
    fit.PopulationData = lambda splits, seeds, *more, **options: usual(
        splits, [seed + 1 for seed in seeds], *more, **options
    )


class Stopper:
    """Lists the operations in `folder`, and stops this process before operation number `last`."""

    def __init__(self, folder: Path, way: str, last: int):
        self.folder, self.way, self.last, self.operations = f"{folder}/", way, last, []
        self.write, self.fsync = os.write, os.fsync
        os.write, os.fsync = self.counted_write, self.counted_fsync
        sys.addaudithook(self.event)

    def operation(self, name: str, path: str) -> bool:
        """Whether this one is that at which to stop; a full disk says so itself."""
        self.operations.append((name, Path(path).name.lstrip(".").split(".")[0].split("-")[0]))
        if self.way == "FULL":
            if len(self.operations) >= self.last and name not in NEEDS_NO_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return False
        return len(self.operations) == self.last

    def stop(self) -> None:
        os.kill(os.getpid(), getattr(signal, f"SIG{self.way}"))

    def event(self, name: str, args: tuple) -> None:
        if name == "open":
            path, _, flags = args
            counts = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        else:
            path, counts = args[0] if args else None, name in WRITES
        is_ours = counts and isinstance(path, str | Path) and str(path).startswith(self.folder)
        if is_ours and self.operation(name, str(path)):
            self.stop()

    def counted_write(self, descriptor: int, content: bytes) -> int:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(self.folder) and self.operation("write", path):
            written = self.write(descriptor, content[: len(content) // 2])
            self.stop()
            return written
        return self.write(descriptor, content)

    def counted_fsync(self, descriptor: int) -> None:
        if self.operation("fsync", os.readlink(f"/proc/self/fd/{descriptor}")):
            self.stop()
        self.fsync(descriptor)


def forked(folder: Path, command: list[str], way: str = "", last: int = 0, *, otherwise: bool = False):
    """(exit status as of `Popen`, operations, output) of the command, stopped at operation `last`, if above 0."""
    read, write = os.pipe()
    log = folder.parent / f"{folder.name}.log"
    child = os.fork()
    if child == 0:
        status = 99
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in a shell's background ignores it
        try:
            os.close(read)
            if otherwise:
                train_otherwise()
            stopper = Stopper(folder, way, last)
            outcome = run_py(*command, f"results_dir={folder}", draws=True)
            log.write_text(outcome.out + outcome.err)
            status = outcome.code
            stopper.write(write, json.dumps(stopper.operations).encode())
        except BaseException:
            log.write_text(traceback.format_exc())
        finally:
            os._exit(status)
    os.close(write)
    with open(read) as pipe:
        operations = json.loads(pipe.read() or "[]")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, operations, log.read_text() if log.exists() else ""


def places_to_stop(operations: list[list[str]]) -> list[int]:
    """The numbers of all operations, each next one at random among those least like the ones before.

    Alike are operations of one kind, and those on one kind of file.
    """
    left = random.Random(0).sample(range(1, len(operations) + 1), len(operations))
    places, seen = [], Counter()
    while left:
        places.append(min(left, key=lambda number: sum(seen[what] for what in operations[number - 1])))
        left.remove(places[-1])
        seen.update(operations[places[-1] - 1])
    return places


def results_of(folder: Path) -> dict:
    """What the runs in a results folder leave, without the provenance, which may differ."""
    found = {}
    for path in sorted(folder.glob("runs/*/record.json")):
        record = json.loads(path.read_text())
        record.pop("provenance")
        weights = {file.name: file.read_bytes() for file in path.parent.glob("*.safetensors")}
        found[path.parent.name] = [record, (path.parent / "metrics.csv").read_bytes(), weights]
    return found


def stopped_badly(way: str, status: int, output: str) -> str | None:
    if status not in STATUS[way] or "Traceback" in output:
        return f"exit status {status}: {output[-1500:]}"
    if way in ("TERM", "INT") and f"stopped by SIG{way}: the same command goes on" not in output:
        return f"it does not say how to go on: {output[-300:]}"
    if way == "FULL" and status == 1 and "No space left on device" not in output:
        return f"it does not say that the disk is full: {output[-300:]}"
    return None


def completed_badly(results: Path, command: list[str], *allowed: dict) -> str | None:
    """What is wrong with the command run again, after which `results` must be one of `allowed`.

    The last of them is what the whole command leaves: then nothing is left to go on from.
    """
    status, _, output = forked(results, command)
    if status != 0:
        return f"exit status {status} when run again: {output[-1500:]}"
    if (found := results_of(results)) not in allowed:
        return "other records"
    names = [path.name for path in results.rglob("*")]
    left = [name for name in names if _LEFTOVER.fullmatch(name) or name.startswith("resume-")]
    return f"{left} are left" if left and found == allowed[-1] else None


def main(folder: Path, ways: dict[str, int], command: list[str]) -> dict:
    sheet.save = report.save = save_quickly
    curves.run_curves = lambda folder: None
    report.report_figures = lambda *_: [("accuracy", Figure())]
    plain = [argument for argument in command if argument != "force=true"]
    is_forced, finished, wrong = plain != command, folder / "finished", []

    def new(name: str) -> Path:
        return shutil.copytree(finished, folder / name) if is_forced else folder / name

    run_py(*plain, f"results_dir={folder / 'first'}", draws=True)
    before = {}
    if is_forced:
        status, _, output = forked(finished, plain, otherwise=True)
        wrong += [] if status == 0 else [f"finished: exit status {status}: {output}"]
        before = results_of(finished)
    status, operations, output = forked(new("undisturbed"), command)
    wrong += [] if status == 0 else [f"undisturbed: exit status {status}: {output}"]
    expected = results_of(folder / "undisturbed")
    if before == expected:
        wrong.append("the training by force has the results of before")
    places = places_to_stop(operations)
    for way, number in ways.items():
        stops, places = places[:number], places[number:]
        for last in stops:
            results = new(f"{way}-{last}")
            status, _, output = forked(results, command, way, last)
            found = stopped_badly(way, status, output)
            if is_forced:
                found = found or completed_badly(results, plain, before, expected)
            found = found or completed_badly(results, command, expected)
            wrong += [f"{way} at operation {last} ({operations[last - 1]}): {found}"] if found else []
            shutil.rmtree(results)
    return {"operations": len(operations), "records": len(expected), "wrong": wrong}


if __name__ == "__main__":
    numbers = {way: int(number) for way, number in (item.split("=") for item in sys.argv[2].split(","))}
    print(json.dumps(main(Path(sys.argv[1]), numbers, sys.argv[3:])))
