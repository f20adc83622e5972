"""The processes in which a sweep on this host trains its cells.

A process trains one cell after another, because a new one needs ten seconds to import PyTorch and to start CUDA. When
one dies (out of memory, a crash), the cell that it had is known: it fails, and a new process goes on with the others.
The processes end with the sweep, even if it is killed while they start.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

GRACE = 5.0  # seconds that a process has to end after SIGTERM
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Work(NamedTuple):
    """What all jobs of a launch have in common: what Hydra gives its launchers."""

    hydra_context: HydraContext
    config: DictConfig
    task_function: TaskFunction
    singletons: dict[Any, Any]  # `Singleton.get_state()["instances"]`


class _Worker:
    """A process, the connection to it, and the number of the job that it has, if any."""

    def __init__(self, threads: int, work: Work):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads))
        self.process.start()
        theirs.close()  # so that its death closes the connection
        self.connection.send(work)
        self.job: int | None = None

    def give(self, job: int, overrides: Sequence[str]) -> None:
        self.job = job
        self.connection.send((job, list(overrides)))

    def result(self) -> JobReturn:
        """Of its job, which has ended or taken the process with it."""
        try:
            status, value = self.connection.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            assert self.process.exitcode is not None  # it has ended
            status, value = JobStatus.FAILED, RuntimeError(f"its process {end_of(self.process.exitcode)}")
        else:
            self.job = None
        return JobReturn(status=status, _return_value=value)

    @property
    def lives(self) -> bool:
        return self.job is None  # it has given back what it had


def end_of(status: int) -> str:
    """How a process ended, by its exit status as `multiprocessing` gives it."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with exit status {status}"


def cpu_cores() -> int:
    """How many cores this process may use: taskset, Slurm and containers allow fewer than the host has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def run_in_processes(jobs: Sequence[Sequence[str]], first: int, work: Work, processes: int) -> list[JobReturn]:
    """Runs each job, a list of overrides, in one of several processes.

    Args:
        jobs: started in this order.
        first: Hydra's number of the first one.
        work: what they have in common.
        processes: how many run at a time.

    Returns:
        The results in the order of the jobs. A job that raised or whose process died has failed.
    """
    waiting = list(enumerate(jobs))[::-1]
    results: dict[int, JobReturn] = {}
    threads = max(1, cpu_cores() // processes)
    workers: list[_Worker] = []
    try:
        while len(results) < len(jobs):
            while waiting and len(workers) < processes:
                workers.append(_Worker(threads, work))
                _give_next(workers[-1], waiting, first)
            for ready in wait([worker.connection for worker in workers]):
                (worker,) = (worker for worker in workers if worker.connection is ready)
                assert worker.job is not None  # each worker that is left has one
                job = worker.job - first
                results[job] = worker.result()
                if worker.lives and waiting:
                    _give_next(worker, waiting, first)
                else:
                    workers.remove(worker)
                    _stop([worker])
    finally:
        _stop(workers)
    return [results[job] for job in range(len(jobs))]


def _stop(workers: Sequence[_Worker]) -> None:
    """Ends them at the same time: those that have not ended `GRACE` seconds after SIGTERM are killed."""
    for worker in workers:
        worker.connection.close()
        worker.process.terminate()
    deadline = time.monotonic() + GRACE
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()


def _give_next(worker: _Worker, waiting: list[tuple[int, Sequence[str]]], first: int) -> None:
    number, overrides = waiting.pop()
    try:
        worker.give(first + number, overrides)
    except (BrokenPipeError, ConnectionError):
        worker.job = first + number  # it died as it started: `result` says so


def _serve(connection: Connection, threads: int) -> None:
    """What a process does: jobs, until there are no more or the sweep is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a process that `_Worker` started
    threading.Thread(target=end_with, args=(parent.sentinel,), daemon=True).start()
    for name in _THREADS:  # before anything imports NumPy or PyTorch
        os.environ.setdefault(name, str(threads))
    try:
        work = connection.recv()  # which imports what defines the task function, and so our resolvers
        while True:
            connection.send(run_job_of(work, *connection.recv()))
    except (EOFError, ConnectionError, KeyboardInterrupt):
        return  # the sweep has ended, or is about to


def run_job_of(work: Work, number: int, overrides: list[str]) -> tuple[JobStatus, Any]:
    """Runs one job in this process, which Hydra has not started; gives what can be pickled of its `JobReturn`."""
    from mixerlab.records.interruption import Terminated

    setup_globals()
    Singleton.set_state(Singleton.get_state() | {"instances": work.singletons})
    config = work.hydra_context.config_loader.load_sweep_config(work.config, overrides)
    with open_dict(config):
        config.hydra.job.id = config.hydra.job.num = number
    try:
        done = run_job(
            hydra_context=work.hydra_context,
            task_function=work.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
    except Terminated:
        raise
    except (KeyboardInterrupt, SystemExit) as error:  # the user's code, or Ctrl-C, of which the sweep hears too
        return JobStatus.FAILED, RuntimeError(f"{type(error).__name__}: {error}")
    if done.status is JobStatus.FAILED:
        # Some exceptions cannot be pickled, or not be made again from their pickle.
        return done.status, RuntimeError(str(done._return_value))
    return done.status, done.return_value


def end_with(sentinel: int, grace: float = 0) -> None:
    """Kills this process `grace` seconds after the parent exits; otherwise it would keep training and hold its GPU."""
    wait([sentinel])
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)  # whatever it does: what is on disk survives that at any moment
