"""The processes of this host in which a sweep trains its cells.

A process trains one cell after another, and not one only: to import PyTorch and to start CUDA takes ten seconds, and
cells of one process share kernels that are compiled. With so few processes there is nothing to win by a server that
forks them, which could die too. When a process dies (out of memory, a crash) or its cell fails, another one goes on:
after some errors of CUDA a process cannot use its GPU, nor can others under MPS until it ends. The processes end with
the sweep, even if it is killed while they start: so this module imports nothing that takes long.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from mixerlab.records.errors import type_and_message
from mixerlab.sweeps.launch.executors import Ended, Train, attempt

if TYPE_CHECKING:
    from mixerlab.sweeps.launch.cells import Cell

GRACE = 5.0  # seconds that a process has to end after SIGTERM


class Processes:
    """An executor of `n_jobs` processes, which share the cores. One that gets no cell ends, and frees its GPU.

    Without `n_jobs` there is one process for each GPU or, without GPUs, for every two cores.
    """

    def __init__(self, train: Train, n_jobs: int | None = None):
        if n_jobs is None:
            import torch

            n_jobs = torch.cuda.device_count() or max(1, cpu_cores() // 2)
        if type(n_jobs) is not int or n_jobs < 1:
            raise ValueError(f"hydra.launcher.n_jobs={n_jobs!r} must be a whole number of at least 1")
        self.train, self.slots, self.threads = train, n_jobs, max(1, cpu_cores() // n_jobs)
        self.cells: dict[Child, Cell | None] = {}  # what each process trains

    def submit(self, cell: "Cell") -> None:
        idle = [child for child, has in self.cells.items() if has is None and child.process.is_alive()]
        child = idle[0] if idle else Child(_serve, self.threads)
        self.cells[child] = cell
        child.send((self.train, cell.cfg))

    def poll(self, seconds: float) -> list[Ended]:
        self._end([child for child, cell in self.cells.items() if cell is None])
        ready = wait([child.connection for child in self.cells], seconds)
        ended = []
        for child, cell in list(self.cells.items()):
            # A dead process may have left a child that holds its end of the connection open.
            if cell is not None and (child.connection in ready or not child.process.is_alive()):
                run_id, error = child.receive() or (None, f"its process {child.ending}")
                if error is None:
                    self.cells[child] = None
                else:
                    self._end([child])
                ended.append(Ended(cell, run_id, error))
        return ended

    def stop(self) -> None:
        self._end(list(self.cells))

    def _end(self, children: Collection["Child"]) -> None:
        end(children)
        for child in children:
            del self.cells[child]


class Child:
    """A process that was started anew, and ends with this one; `target` gets the other end of the connection to it."""

    def __init__(self, target: Callable[..., None], *args: Any):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *args))
        self.process.start()
        theirs.close()  # so that its death closes the connection

    def send(self, content: Any) -> None:
        with contextlib.suppress(OSError):  # it has died, which `receive` says
            self.connection.send(content)

    def receive(self) -> Any:
        """What it has sent; None if it has ended, or has closed the connection, before."""
        try:
            if self.connection.poll():
                return self.connection.recv()
        except (EOFError, OSError):
            pass
        self.process.join(GRACE)
        return None

    @property
    def ending(self) -> str:
        status = self.process.exitcode
        if status is not None and status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with exit status {status}"


def end(children: Collection[Child]) -> None:
    """Ends them at the same time: those that have not ended `GRACE` seconds after SIGTERM are killed."""
    for child in children:
        child.connection.close()
        child.process.terminate()
    deadline = time.monotonic() + GRACE
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
        child.process.kill()
        child.process.join()


def cpu_cores() -> int:
    """How many cores this process may use: taskset, Slurm and containers allow fewer than the host has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def _serve(connection: Connection, threads: int) -> None:
    """What a process does: trains cells, until there are no more or the sweep is gone."""
    end_with_parent()
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    try:
        while True:
            train, cfg = connection.recv()  # which imports PyTorch, after its number of threads is set
            try:
                answer = attempt(train, cfg)
            except KeyboardInterrupt as error:  # the user's code; or Ctrl-C, of which the sweep hears too
                answer = None, type_and_message(error)
            connection.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        return  # the sweep has ended, or is about to


def end_with_parent(grace: float = 0) -> None:
    """Kills this process `grace` seconds after its parent exits; otherwise it would train on, and hold its GPU."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a `Child`

    def wait_and_end() -> None:
        wait([parent.sentinel])
        time.sleep(grace)
        os.kill(os.getpid(), signal.SIGKILL)  # whatever it does: what is on disk survives that at any moment

    threading.Thread(target=wait_and_end, daemon=True).start()
