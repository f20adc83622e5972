"""How far a sweep is, by the cost of the cells that have ended."""

import time
from collections.abc import Sequence

from tqdm import tqdm

from mixerlab.records.text import Lines, counted, is_terminal
from mixerlab.sweeps.launch.cells import Cell


class SweepProgress:
    """Says how far these cells are: on a terminal a bar, in a file or a pipe a line now and then."""

    def __init__(self, cells: Sequence[Cell]):
        self.left = {cell: cell.cost for cell in cells}
        self.number, self.total, self.began_at = len(cells), sum(self.left.values()), time.monotonic()
        self.bar = tqdm(
            total=self.total,
            bar_format="{desc} |{bar}| {percentage:3.0f}% of the work, {elapsed} passed, {remaining} left",
            dynamic_ncols=True,
            smoothing=0,  # the mean since the start: cells end in bursts
            disable=not is_terminal(),
        )
        self.lines = None if is_terminal() else Lines()
        self.show()

    def ended(self, cell: Cell) -> None:
        """Counts a cell, finished or failed."""
        self.bar.update(self.left.pop(cell))

    def show(self, at_once: bool = False) -> None:
        """Brings bar and times up to date; `at_once`: also says a line that is not due yet."""
        self.bar.set_description_str(self._done())
        if self.lines is not None:
            self.lines.tell(self._line, at_once)

    def close(self) -> None:
        self.show(at_once=True)
        self.bar.close()

    def _done(self) -> str:
        return f"{self.number - len(self.left)} of {counted(self.number, 'run')} done"

    def _line(self) -> str:
        passed = time.monotonic() - self.began_at
        share = 1 - sum(self.left.values()) / self.total
        left = f", {tqdm.format_interval(passed / share - passed)} left" if 0 < share < 1 else ""
        return f"{self._done()}, {100 * share:.0f}% of the work, {tqdm.format_interval(passed)} elapsed{left}"
