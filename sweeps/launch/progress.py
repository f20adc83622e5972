"""How far a sweep is, by the records that its cells leave."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tqdm import tqdm

from mixerlab.records.files import RECORD_FILE
from mixerlab.records.text import Lines, counted, is_terminal

POLL_SECONDS = 2.0


class SweepProgress:
    """Counts the records that appear while a sweep runs, whoever writes them: this process or others.

    On a terminal it is a bar, in a file or a pipe a line now and then.

    Args:
        costs: what each run costs, in any unit, by its folder.
    """

    def __init__(self, costs: Mapping[Path, float]):
        self.waiting = {folder / RECORD_FILE: cost for folder, cost in costs.items()}
        self.since = time.time()
        self.total = sum(self.waiting.values())
        self.bar = tqdm(
            total=self.total,
            bar_format="{desc} |{bar}| {percentage:3.0f}% of the work, {elapsed} passed, {remaining} left",
            dynamic_ncols=True,
            smoothing=0,  # the mean since the start: records come in bursts
            disable=not is_terminal(),
        )
        self.lines = None if is_terminal() else Lines()
        self.number = len(costs)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *exception: object) -> None:
        self.stop.set()
        self.thread.join()
        self._count(at_end=True)
        self.bar.close()

    def _watch(self) -> None:
        while not self.stop.wait(POLL_SECONDS):
            self._count()

    def _count(self, at_end: bool = False) -> None:
        for path in list(self.waiting):
            if path.exists() and path.stat().st_mtime >= self.since:
                self.bar.update(self.waiting.pop(path))
        self.bar.set_description_str(self._done())
        if self.lines is not None:
            self.lines.tell(self._line, at_once=at_end)

    def _done(self) -> str:
        return f"{self.number - len(self.waiting)} of {counted(self.number, 'run')} done"

    def _line(self) -> str:
        passed = time.time() - self.since
        share = 1 - sum(self.waiting.values()) / self.total
        left = f", {tqdm.format_interval(passed / share - passed)} left" if 0 < share < 1 else ""
        return f"{self._done()}, {100 * share:.0f}% of the work, {tqdm.format_interval(passed)} elapsed{left}"
