"""How far a sweep is, by the cost of the cells that are left."""

import time
from collections.abc import Iterable, Sequence

from tqdm import tqdm

from mixerlab.records.text import Lines, counted, is_terminal
from mixerlab.sweeps.launch.cells import Cell


class SweepProgress:
    """Says how far these cells are: on a terminal a bar, in a file or a pipe a line now and then."""

    def __init__(self, cells: Sequence[Cell]):
        self.number, self.total = len(cells), sum(cell.cost for cell in cells)
        self.began_at = time.monotonic()
        self.bar = tqdm(
            total=self.total,
            bar_format="{desc} |{bar}| {percentage:3.0f}% of the work, {elapsed} passed, {remaining} left",
            dynamic_ncols=True,
            smoothing=0,  # the mean since the start: cells end in bursts
            disable=not is_terminal(),
        )
        self.lines = Lines()
        self.line = ""
        self.show(cells)

    def show(self, left: Iterable[Cell]) -> None:
        """Brings bar and times up to date."""
        costs = [cell.cost for cell in left]
        done, share = f"{self.number - len(costs)} of {counted(self.number, 'run')} done", 1 - sum(costs) / self.total
        passed = time.monotonic() - self.began_at
        rest = f", {tqdm.format_interval(passed / share - passed)} left" if 0 < share < 1 else ""
        self.line = f"{done}, {100 * share:.0f}% of the work, {tqdm.format_interval(passed)} elapsed{rest}"
        if is_terminal():
            self.bar.n = share * self.total
            self.bar.set_description_str(done)
        else:
            self.lines.tell(lambda: self.line)

    def close(self) -> None:
        if not is_terminal():
            self.lines.tell(lambda: self.line, at_once=True)
        self.bar.close()
