"""A grid of runs: those that are not finished are trained, the longest first, and all are reported."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Literal

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.types import Override

from mixerlab.records.atomic import remove_leftovers
from mixerlab.records.claims import claim
from mixerlab.records.files import Unreadable, check_writable, forget, kept_record
from mixerlab.records.schema import Record, changed_code, state_of
from mixerlab.records.text import counted
from mixerlab.sweeps.launch.cells import Cell, names_of
from mixerlab.sweeps.launch.progress import SweepProgress
from mixerlab.sweeps.launch.sweep import Sweep


def run_grid(sweep: Sweep, overrides: Sequence[Override]) -> None:
    """Trains each combination of the overrides' values and reports; with `dry_run=true` only lists the cells.

    Closes `sweep`. Ends the process with a message if a cell fails.
    """
    (grid,) = BasicSweeper.split_arguments(list(overrides), None)
    cells, left_out = sweep.composer.cells(grid)
    names, total = names_of(cells), counted(len(cells), "run")
    for line in left_out:
        print(line, flush=True)
    pending, finished, failed = _find(cells, sweep.config.force)
    if sweep.config.dry_run:
        width = max(50, *map(len, names.values()))
        for cell in cells:
            state = "damaged" if cell in failed else state_of(finished.get(cell), cell.code)
            print(f"{cell.run_id}  {names[cell]:<{width}} {state}")
        print(f"{total}, {len(finished)} of them finished")
        return
    check_writable(sweep.config.results_dir)
    print(f"{total}: {len(finished)} finished already, {len(pending)} to run", flush=True)
    name = sweep.note(cells)
    _say_what_changed(finished)
    for cell in finished:  # what a process was killed at after it had written its record
        with suppress(ValueError, OSError), claim(cell.folder) as ours:  # it is finished also if it is another user's
            if ours:
                remove_leftovers(cell.folder)
                forget(cell.folder)
    if pending:
        with closing(sweep), closing(SweepProgress({cell: names[cell] for cell in pending})) as progress:
            failed |= sweep.train(pending, progress)
    sweep.report_on(cells, name)
    for cell, reason in failed.items():
        print(f"FAILED {names[cell]}: {reason} ({cell.folder})", file=sys.stderr)
    if failed:
        sys.exit(f"{len(failed)} of {total} failed")


def _find(
    cells: Sequence[Cell], force: bool | Literal["changed"]
) -> tuple[list[Cell], dict[Cell, Record], dict[Cell, str]]:
    """The cells to train, the costly ones first; the finished ones; and those whose record cannot be read, and why."""
    pending, finished, damaged = [], {}, {}
    for cell in cells:
        try:
            if (record := kept_record(cell.folder, force, cell.code)) is None:
                pending.append(cell)
            else:
                finished[cell] = record
        except Unreadable as error:  # the record stays as it is
            damaged[cell] = str(error)
    return sorted(pending, key=lambda cell: -cell.cost), finished, damaged


def _say_what_changed(finished: Mapping[Cell, Record]) -> None:
    """Prints of which parts of finished cells the code has changed, and how to train them again."""
    changed = {cell: changed_code(record, cell.code) for cell, record in finished.items()}
    names = {cell: {"mixer": f"mixer {cell.label[0]}", "task": f"task {cell.label[1]}"} for cell in changed}
    if parts := {names[cell].get(part, part) for cell, parts in changed.items() for part in parts}:
        runs = counted(sum(map(bool, changed.values())), "finished run")
        said = f"code has changed since {runs} trained ({', '.join(sorted(parts))})"
        print(f"{said}: force=changed trains them again", flush=True)
