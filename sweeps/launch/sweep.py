"""A sweep: trains cells on an executor, waits for those of other processes, and reports on all of them."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from mixerlab.records.claims import holder, is_claimed
from mixerlab.records.named import name_from, name_of, sweep_report, write_sweep
from mixerlab.records.text import counted
from mixerlab.sweeps.launch.cells import Cell, Composer
from mixerlab.sweeps.launch.executors import Executor
from mixerlab.sweeps.launch.progress import SweepProgress
from mixerlab.sweeps.report.report import report

POLL_SECONDS = 2.0


class Sweep:
    """Trains cells and reports on them; `close` ends what still trains."""

    def __init__(self, config: DictConfig, composer: Composer, executor: Executor):
        self.config, self.composer, self.executor = config, composer, executor

    def close(self) -> None:
        self.executor.stop()

    def train(self, cells: Sequence[Cell], progress: SweepProgress | None = None) -> dict[Cell, str]:
        """Trains these cells, the first one first, and gives the errors of those that failed.

        What another sweep trains is waited for, and taken over should that sweep die. What the executor loses is tried
        once more.
        """
        executor = self.executor
        queue, running, lost = list(cells), set[Cell](), set[Cell]()
        failed: dict[Cell, str] = {}
        is_waiting = False
        while queue or running:
            for cell in list(queue):
                try:
                    if len(running) >= executor.slots or is_claimed(cell.folder):
                        continue
                except (ValueError, OSError) as error:
                    queue.remove(cell)
                    failed[cell] = str(error)
                    continue
                queue.remove(cell)
                running.add(cell)
                executor.submit(cell)
            if queue and not running and not is_waiting:
                runs = counted(len(queue), "run")
                tqdm.write(
                    f"waiting for {runs} that other processes train ({holder(queue[0].folder)})", file=sys.stderr
                )
            is_waiting = not running
            if progress is not None:
                progress.show(queue, running)
            for ended in executor.poll(POLL_SECONDS):
                cell = ended.cell
                running.remove(cell)
                if ended.is_lost and cell not in lost:
                    tqdm.write(f"the launcher lost a run, which is tried again: {ended.error}", file=sys.stderr)
                    lost.add(cell)
                    queue.append(cell)
                elif ended.error is None and ended.run_id is None:
                    queue.append(cell)  # another process was faster
                elif ended.error is not None:
                    failed[cell] = f"the launcher lost it twice: {ended.error}" if ended.is_lost else ended.error
                elif ended.run_id != cell.run_id:
                    failed[cell] = f"ran as {ended.run_id}: its config has another value in another process"
        if progress is not None:
            progress.show()
        return failed

    def note(self, cells: Iterable[Cell]) -> str:
        """Notes which runs are this sweep's, and gives its name: `sweep`, the experiment's or one made of the runs."""
        configs = configs_of(cells)
        experiment = self.config.hydra.runtime.choices.get("experiment")
        name = self.config.sweep or (experiment and name_from(experiment)) or name_of(configs)
        write_sweep(self.config.results_dir, name, configs)
        return name

    def report_on(self, cells: Iterable[Cell], name: str) -> Path:
        """Prints tables, and makes figures; gives the folder that holds them.

        Ends the process with a message if the report cannot be written.
        """
        results_dir = self.config.results_dir
        folder = sweep_report(results_dir, name)
        again = shlex.join(["mixerlab", "report", results_dir, "--sweep", name])
        try:
            text = report([results_dir], folder, configs_of(cells))
        except (ValueError, OSError) as error:
            sys.exit(f"error: the runs are trained, but their report cannot be written ({error}); later: {again}")
        print(f"\n{text}\n")
        print(f"tables and figures: {folder}\nmake them of all sweeps named {name}, or by other keys: {again}")
        return folder


def configs_of(cells: Iterable[Cell]) -> dict[str, dict[str, Any]]:
    """By `run_id`."""
    return {cell.run_id: cell.config for cell in cells}
