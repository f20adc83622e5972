"""A grid of runs: those that are not finished are trained, the longest first, and all are reported."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from mixerlab.config.values import CHANGED
from mixerlab.records.atomic import remove_leftovers
from mixerlab.records.claims import claim
from mixerlab.records.files import check_writable, forget, read_record, selections_without_weights, take_place
from mixerlab.records.schema import changed_code
from mixerlab.records.text import counted
from mixerlab.sweeps.launch.cells import Cell, names_of
from mixerlab.sweeps.launch.progress import SweepProgress
from mixerlab.sweeps.launch.sweep import Sweep


@dataclass
class Found:
    """What the results folders have of the cells.

    Attributes:
        pending: the cells that will train, the longest first.
        damaged: the cells whose record cannot be read, and why.
        finished: the others.
        changed: the finished cells that were trained by other code than today's, and which parts (`changed_code`).
        lacking: the finished cells that have no weights of the epochs that are to be kept.
    """

    pending: list[Cell] = field(default_factory=list)
    damaged: dict[Cell, str] = field(default_factory=dict)
    finished: list[Cell] = field(default_factory=list)
    changed: dict[Cell, list[str]] = field(default_factory=dict)
    lacking: list[Cell] = field(default_factory=list)

    def state(self, cell: Cell) -> str:
        return "damaged" if cell in self.damaged else "finished" if cell in self.finished else "to run"

    def offers(self) -> Iterator[str]:
        """Which finished cells the user may want to train again, and how, a line each."""
        if self.changed:
            parts = ", ".join(sorted({_named(part, cell) for cell, parts in self.changed.items() for part in parts}))
            runs = counted(len(self.changed), "finished run")
            yield f"code has changed since {runs} trained ({parts}): force={CHANGED} trains what it changes again"
        if self.lacking:
            runs, weights = counted(len(self.lacking), "finished run"), " and ".join(self.lacking[0].keeps)
            yield f"{weights} weights are missing in {runs}: force=true trains all runs again and keeps them"


def run_grid(sweep: Sweep, grid: Sequence[list[str]]) -> None:
    """Trains and reports; with `dry_run=true` only lists the cells.

    Ends the process with a message if a cell fails.

    Args:
        sweep: is closed at the end.
        grid: the overrides of each combination, in which `task.setting=*` may stand.

    Raises:
        ValueError: the grid is refused, a results folder cannot be used, or the executor cannot.
    """
    cells, left_out = sweep.composer.cells(grid)
    if not sweep.config.dry_run:
        for results_dir in dict.fromkeys(cell.results_dir for cell in cells):
            check_writable(results_dir)
    for line in left_out:
        print(line, flush=True)
    found, names = find(sweep, cells), names_of(cells)
    if sweep.config.dry_run:
        width = max(50, *map(len, names.values()))
        for cell in cells:
            print(f"{cell.run_id}  {names[cell]:<{width}} {found.state(cell)}")
        print(f"{counted(len(cells), 'run')}, {len(found.finished)} of them finished")
        return
    runs = counted(len(cells), "run")
    print(f"{runs}: {len(found.finished)} finished already, {len(found.pending)} to run", flush=True)
    name = sweep.note(cells)
    for line in found.offers():
        print(line, flush=True)
    for cell in [*found.finished, *found.damaged]:
        _clean(cell.folder)
    failed = found.damaged | _train(sweep, found.pending)
    sweep.report_on(cells, name)
    for cell, reason in failed.items():
        print(f"FAILED {names[cell]}: {reason} ({cell.folder})", file=sys.stderr)
    if failed:
        sys.exit(f"{len(failed)} of {runs} failed")


def _train(sweep: Sweep, pending: Sequence[Cell]) -> dict[Cell, str]:
    if not pending:
        return {}
    with closing(sweep), closing(SweepProgress(pending)) as progress:
        return sweep.train(pending, progress)


def find(sweep: Sweep, cells: Sequence[Cell]) -> Found:
    """What the results folders have of these cells. One that cannot be read is damaged, and stays as it is."""
    found = Found()
    for cell in cells:
        try:
            record = None if sweep.config.force is True else read_record(cell.folder)
            is_pending = sweep.is_pending(cell, record)
        except (ValueError, OSError) as error:
            found.damaged[cell] = str(error)
            continue
        if is_pending:
            found.pending.append(cell)
            continue
        assert record is not None  # as it is finished
        found.finished.append(cell)
        if changed := changed_code(record, cell.code):
            found.changed[cell] = changed
        if selections_without_weights(cell.folder, record, cell.keeps):
            found.lacking.append(cell)
    found.pending.sort(key=lambda cell: -cell.cost)
    return found


def _clean(folder: Path) -> None:
    """Ends what a process was killed at after it had written its record, unless another one is there."""
    with claim(folder) as ours:
        if ours:
            remove_leftovers(folder)
            take_place(folder)
            forget(folder)


def _named(part: str, cell: Cell) -> str:
    """A part of a run (`changed_code`) with its name, if it has one: `mixer gdn`."""
    mixer, task, _ = cell.label
    return {"mixer": f"mixer {mixer}", "task": f"task {task}"}.get(part, part)
