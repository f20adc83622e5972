"""How far a sweep is, by the cost of the cells that are left and the epochs of those that run."""

import threading
import time
from collections.abc import Iterable, Mapping

from tqdm import tqdm

from mixerlab.records.claims import share_done
from mixerlab.records.text import Lines, counted, is_terminal
from mixerlab.sweeps.launch.cells import Cell

REFRESH_SECONDS = 2.0
SHOWN = 3  # runs that a line names


class SweepProgress:
    """Says how far these cells are: on a terminal a bar, in a file or a pipe a line now and then.

    A thread brings it up to date, also while this process trains. `names` says what to call each cell.
    """

    def __init__(self, names: Mapping[Cell, str]):
        self.names, self.total = names, sum(cell.cost for cell in names)
        self.queue, self.running = list(names), list[Cell]()
        self.began_at = time.monotonic()
        self.bar = tqdm(
            total=self.total,
            bar_format="{desc} |{bar}| {percentage:3.0f}% of the work{postfix}",
            dynamic_ncols=True,
            disable=not is_terminal(),
        )
        self.lines = Lines()
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._refresh, daemon=True)
        self.thread.start()

    def show(self, queue: Iterable[Cell] = (), running: Iterable[Cell] = ()) -> None:
        """Takes what is left."""
        self.queue, self.running = list(queue), list(running)

    def line(self) -> tuple[str, float, str]:
        """How many runs are done, the share of the work that is, and the times with the names of runs that train."""
        queue, running = self.queue, self.running
        shares = {cell: share_done(cell.folder) for cell in running}
        left = sum(cell.cost * (1 - shares.get(cell, 0)) for cell in [*queue, *running])
        share, passed = 1 - left / self.total, time.monotonic() - self.began_at
        rest = f", {tqdm.format_interval(passed / share - passed)} left" if 0 < share < 1 else ""
        first = sorted(shares.items(), key=lambda item: -item[1])[:SHOWN]
        now = "; ".join(f"{self.names[cell]} {100 * part:.0f}%" for cell, part in first)
        more = f" and {len(shares) - SHOWN} more" if len(shares) > SHOWN else ""
        done = f"{len(self.names) - len(queue) - len(running)} of {counted(len(self.names), 'run')} done"
        return done, share, f"{tqdm.format_interval(passed)} elapsed{rest}{f'; now {now}{more}' if now else ''}"

    def _refresh(self) -> None:
        while not self.is_over.wait(REFRESH_SECONDS):
            self._draw()

    def _draw(self, at_once: bool = False) -> None:
        done, share, times = self.line()
        if is_terminal():
            self.bar.n = share * self.total
            self.bar.set_description_str(done, refresh=False)
            self.bar.set_postfix_str(times)
        else:
            self.lines.tell(lambda: f"{done}, {100 * share:.0f}% of the work, {times}", at_once)

    def close(self) -> None:
        self.is_over.set()
        self.thread.join()
        self._draw(at_once=True)
        self.bar.close()
