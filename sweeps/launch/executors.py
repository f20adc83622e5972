"""What trains the cells of a sweep: this process (`Serial`), or others (`processes`, `slurm`, `ray_tasks`)."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from omegaconf import DictConfig

from mixerlab.records.errors import users_code

if TYPE_CHECKING:
    from mixerlab.sweeps.launch.cells import Cell

# Trains a composed config, and gives its `run_id` or None: another process trains it. That is
# `mixerlab.train.run_cell`: a function that another process can import.
Train = Callable[[DictConfig], str | None]


class Ended(NamedTuple):
    """A cell that an executor no longer has.

    Attributes:
        run_id: if it is finished; None if it failed, or if a process that is not the executor's trains it.
        is_lost: the executor failed, and not the cell, which can be tried again.
    """

    cell: "Cell"
    run_id: str | None = None
    error: str | None = None
    is_lost: bool = False


class Executor(Protocol):
    """Trains cells: `slots` at a time; infinitely many if it queues them itself. ValueError if it cannot be used."""

    slots: float

    def submit(self, cell: "Cell") -> None:
        """Takes a cell, of which it has fewer than `slots`."""

    def poll(self, seconds: float) -> list[Ended]:
        """The cells that have ended since the last call; waits so long for the first."""

    def stop(self) -> None:
        """Ends whatever still trains. The last call."""


class Serial:
    """Trains in this process, one cell in each `poll`, however long that takes."""

    slots: float = 1

    def __init__(self, train: Train):
        self.train = train
        self.cells: list[Cell] = []

    def submit(self, cell: "Cell") -> None:
        self.cells.append(cell)

    def poll(self, seconds: float) -> list[Ended]:
        if not self.cells:
            time.sleep(seconds)
            return []
        cell = self.cells.pop()
        return [Ended(cell, *attempt(self.train, cell.cfg))]

    def stop(self) -> None:
        pass


def attempt(train: Train, cfg: DictConfig) -> tuple[str | None, str | None]:
    """Trains; gives the `run_id`, and the error if it failed. A `sys.exit` of the user's code is such an error."""
    try:
        with users_code():
            return train(cfg), None
    except Exception as error:
        return None, str(error) or type(error).__name__
