"""A sweep: trains the cells of a grid that are not finished, and reports all of them."""

import contextlib
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext
from omegaconf import DictConfig
from tqdm import tqdm

from mixerlab.config.project import use_project
from mixerlab.config.values import CHANGED
from mixerlab.records.atomic import remove_leftovers
from mixerlab.records.claims import claim, holder, is_claimed
from mixerlab.records.errors import type_and_message
from mixerlab.records.files import (
    check_writable,
    read_record,
    record_bytes,
    selections_without_weights,
)
from mixerlab.records.named import name_from, name_of, read_sweep, write_sweep
from mixerlab.records.schema import Record, changed_code
from mixerlab.records.text import counted
from mixerlab.sweeps.launch.cells import Cell, Composer, told_apart
from mixerlab.sweeps.launch.progress import SweepProgress
from mixerlab.sweeps.launch.slurm import SlurmFailed, SlurmJobs, slurm_jobs
from mixerlab.sweeps.report.report import report
from mixerlab.training.checkpoints import forget_checkpoints, is_half_replaced, is_interrupted_by_force

POLL_SECONDS = 2.0
MOST_SHOWN = 3  # holders listed in one message


@dataclass
class Found:
    """What a results folder has of the cells of a sweep.

    Attributes:
        pending: the cells that will train, the longest first.
        damaged: the cells whose record cannot be read, and why.
        finished: how many cells are finished.
        changed: the finished cells that were trained by other code than today's, and which parts (`changed_code`).
        lacking: the finished cells that have no weights of the epochs that are to be kept.
    """

    pending: list[Cell] = field(default_factory=list)
    damaged: dict[Cell, str] = field(default_factory=dict)
    finished: int = 0
    changed: dict[Cell, list[str]] = field(default_factory=dict)
    lacking: list[Cell] = field(default_factory=list)

    def offers(self) -> Iterator[str]:
        """Which finished cells the user may want to train again, and how, a line each."""
        if self.changed:
            parts = ", ".join(sorted({_code(part, cell) for cell, parts in self.changed.items() for part in parts}))
            one = len(self.changed) == 1
            yield (
                f"The code of {counted(len(self.changed), 'finished run')} has changed since"
                f" {'it was' if one else 'they were'} trained ({parts}): force={CHANGED} trains"
                f" {'it' if one else 'them'} again"
            )
        if self.lacking:
            have = "has" if len(self.lacking) == 1 else "have"
            yield (
                f"{counted(len(self.lacking), 'finished run')} {have} no {' and '.join(self.lacking[0].keeps)}"
                " weights: force=true trains all runs again and keeps them"
            )


class Sweep:
    """Trains the cells of a grid that are not finished, and reports all of them.

    Args:
        hydra_context, config, launcher: what Hydra gives a sweeper.
    """

    def __init__(self, hydra_context: HydraContext, config: DictConfig, launcher: Launcher):
        self.hydra_context, self.config, self.launcher = hydra_context, config, launcher
        self.composer = Composer(hydra_context, config)

    def run(self, grid: list[list[str]]) -> None:
        """Trains and reports; `grid` has the overrides of each combination, in which `task.setting=*` may stand.

        Ends the process with a message if the grid is refused or a cell fails.
        """
        try:
            use_project(self.config.hydra)
            cells, left_out = self.composer.cells(grid)
            if not self.config.dry_run:
                for results_dir in dict.fromkeys(cell.results_dir for cell in cells):
                    check_writable(results_dir)
        except ValueError as error:
            sys.exit(f"error: {error}")
        for line in left_out:
            print(line, flush=True)
        found = self.find(cells)
        names = told_apart(cells)
        if self.config.dry_run:
            _list(cells, found, names)
            return
        print(
            f"{counted(len(cells), 'run')}: {found.finished} finished already, {len(found.pending)} to run", flush=True
        )
        try:
            name = self.note(cells)
        except (ValueError, OSError) as error:  # of the results folder: it is being written, or the disk is full
            sys.exit(f"error: {error}")
        for line in found.offers():
            print(line, flush=True)
        failed = dict(found.damaged)
        try:
            for cell in cells:
                if cell not in found.pending:
                    _clean(cell.folder)
            costs = {cell.folder: cell.cost for cell in found.pending}
            with SweepProgress(costs) if costs else contextlib.nullcontext():
                failed |= self.train(found.pending)
        except (ValueError, OSError) as error:  # of the launcher: no accounting; of the results folder: no locks
            sys.exit(f"error: {error}")
        self.report_on(cells, name)
        for cell, reason in failed.items():
            print(f"FAILED {names[cell]}: {reason} ({cell.folder})", file=sys.stderr)
        if failed:
            sys.exit(f"{len(failed)} of {counted(len(cells), 'run')} failed")

    def find(self, cells: Iterable[Cell]) -> Found:
        """What the results folder has of these cells."""
        found = Found()
        for cell in cells:
            try:
                record = None if self.config.force is True else read_record(cell.folder)
                is_pending = self.is_pending(cell, record)
            except (ValueError, OSError) as error:  # it stays as it is: what it was may be told from it
                found.damaged[cell] = str(error)
                continue
            if is_pending:
                found.pending.append(cell)
                continue
            assert record is not None
            found.finished += 1
            if changed := changed_code(record, cell.code):
                found.changed[cell] = changed
            if selections_without_weights(cell.folder, record, cell.keeps):
                found.lacking.append(cell)
        found.pending.sort(key=lambda cell: -cell.cost)
        return found

    def is_pending(self, cell: Cell, record: Record | None) -> bool:
        """Whether the cell, which has this record, is to be trained."""
        if self.config.force is True or record is None or record.status != "finished":
            return True
        if is_half_replaced(cell.folder, record_bytes(cell.folder)):
            return True
        return self.config.force == CHANGED and bool(changed_code(record, cell.code))

    def note(self, cells: list[Cell]) -> str:
        """Notes which runs are this sweep's, and gives its name: `sweep`, the experiment's or one made of the runs."""
        experiment = self.config.hydra.runtime.choices.get("experiment")
        name = self.config.sweep or (experiment and name_from(experiment))
        name = name or name_of(cell.run_id for cell in cells)
        for results_dir, own in _by_folder(cells).items():
            write_sweep(results_dir, name, {cell.run_id: cell.config for cell in own})
        return name

    def report_on(self, cells: list[Cell], name: str) -> list[Path]:
        """Prints tables, and makes figures, of each results folder; gives the folders that hold them."""
        folders = []
        for results_dir, own in _by_folder(cells).items():
            again = shlex.join(["mixerlab", "report", results_dir, "--sweep", name])
            try:
                configs = {cell.run_id: cell.config for cell in own}
                summary = report(results_dir, configs=configs)
            except (ValueError, OSError) as error:
                sys.exit(f"error: the runs are trained, but their report cannot be written ({error}); later: {again}")
            others = len(read_sweep(results_dir, name).keys() - configs.keys())
            more = f"with {counted(others, 'other run')} of this sweep" if others else "again, or by other keys"
            print(f"\n{summary.text}\n")
            print(f"tables and figures: {summary.folder}\n{more}: {again}")
            folders.append(Path(summary.folder))
        return folders

    def train(self, pending: list[Cell]) -> dict[Cell, str]:
        """Trains what is pending, as long as others hold some of it; gives the errors of those that failed."""
        failed: dict[Cell, str] = {}
        tries: Counter[Cell] = Counter()
        waits_since = None
        jobs = slurm_jobs(self.launcher) if pending else None
        with jobs or contextlib.nullcontext():
            while pending:
                # What another sweep holds is waited for, and taken over should that sweep die.
                free = [cell for cell in pending if not is_claimed(cell.folder)]
                if not free:
                    if waits_since is None:
                        waits_since = time.monotonic()
                        tqdm.write(
                            f"waiting for {counted(len(pending), 'run')} that other processes train"
                            f" ({_holders(pending)})",
                            file=sys.stderr,
                        )
                    if self.config.wait is not None and time.monotonic() - waits_since >= self.config.wait:
                        reason = f"another process still trains it after wait={self.config.wait} seconds"
                        return failed | {cell: f"{reason}: {holder(cell.folder)}" for cell in pending}
                    time.sleep(POLL_SECONDS)
                    continue
                waits_since = None
                tries.update(free)
                ended, engine_failed = _train(self.launcher, free, jobs)
                if engine_failed is not None:
                    lost = [cell for cell in free if cell not in ended]
                    ended |= {cell: f"the launcher failed twice: {engine_failed}" for cell in lost if tries[cell] >= 2}
                    again = sum(cell not in ended for cell in lost)
                    tqdm.write(
                        f"the launcher failed ({engine_failed}); runs to try once more: {again}", file=sys.stderr
                    )
                failed |= {cell: error for cell, error in ended.items() if error is not None}
                pending = [cell for cell in pending if cell not in ended]
        return failed


def _clean(folder: Path) -> None:
    """Removes what a process left that was killed after it had written its record, unless another one is there."""
    with claim(folder) as ours:
        if ours:
            if not is_interrupted_by_force(folder, record_bytes(folder)):
                forget_checkpoints(folder)
            remove_leftovers(folder)


def _by_folder(cells: list[Cell]) -> dict[str, list[Cell]]:
    found: dict[str, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.results_dir, []).append(cell)
    return found


def _list(cells: Sequence[Cell], found: Found, names: Mapping[Cell, str]) -> None:
    """Prints each cell and its state: what `dry_run=true` is for."""
    width = max(50, *map(len, names.values()))
    for cell in cells:
        state = "damaged" if cell in found.damaged else "to run" if cell in found.pending else "finished"
        print(f"{cell.run_id}  {names[cell]:<{width}} {state}")
    print(f"{counted(len(cells), 'run')}, {found.finished} of them finished")


def _code(part: str, cell: Cell) -> str:
    """What the code of a part of a run (`changed_code`) is the code of: `mixer gdn`."""
    mixer, task, *_ = cell.label
    return {"mixer": f"mixer {mixer}", "task": f"task {task}"}.get(part, part)


def _holders(cells: list[Cell]) -> str:
    holders = list(dict.fromkeys(holder(cell.folder) for cell in cells))
    return ", ".join(holders[:MOST_SHOWN]) + (f" and {len(holders) - MOST_SHOWN} more" if holders[MOST_SHOWN:] else "")


def _train(
    launcher: Launcher, cells: list[Cell], jobs: SlurmJobs | None = None
) -> tuple[dict[Cell, str | None], str | None]:
    """Those that ended, each with its error or None; and why the engine failed as a whole, if it did.

    Raises:
        ValueError: what the launcher refuses of its options.
    """
    before = {cell: record_bytes(cell.folder) for cell in cells}
    try:
        results = launcher.launch([cell.overrides for cell in cells], initial_job_idx=0)
    except ValueError:
        raise  # it is not set up
    except Exception as error:  # of any engine: a job that Slurm has cancelled, a cluster that is gone
        reason = type_and_message(error)
        try:
            if jobs is not None:  # the others train on: one that was killed costs only itself
                jobs.wait()
        except SlurmFailed as failure:
            reason = f"{reason}; {failure}"
        after = {cell: read_record(cell.folder) for cell in cells if record_bytes(cell.folder) != before[cell]}
        return {cell: record.error for cell, record in after.items() if record is not None}, reason
    return _ended(cells, results), None


def _ended(cells: list[Cell], results: Sequence[JobReturn]) -> dict[Cell, str | None]:
    """The cells that are no other process's, each with its error or None."""
    ended: dict[Cell, str | None] = {}
    for cell, result in zip(cells, results, strict=True):
        if result.status is JobStatus.FAILED:
            ended[cell] = str(result._return_value)
        elif result.return_value == cell.run_id:
            ended[cell] = None
        elif result.return_value is not None:
            ended[cell] = f"ran as {result.return_value}: its config has another value in another process"
    return ended
