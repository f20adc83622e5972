"""Works through a list of jobs in several processes until the time is over.

`results/train.py` trains runs of ours with it, `results/parity/theirs.py` runs of mad-lab.
"""

import multiprocessing as mp
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

LOST_DEVICE = 3  # exit status of a process whose CUDA context is lost: whatever it tried next would fail as well
MOST_RESTARTS = 20


@dataclass(frozen=True)
class Job:
    """A piece of work.

    Attributes:
        name: what messages call it.
        unit: jobs that share it are best done by one process in a row, since they share what is compiled.
        seconds: how long it takes in one of the processes; 0 if that is not known.
        task: what the worker's function gets.
    """

    name: str
    unit: str
    seconds: float
    task: Any


@dataclass(frozen=True)
class Outcome:
    job: Job
    value: Any  # what the worker's function returned, or None
    error: str | None  # with its traceback
    seconds: float


def next_job(jobs: Sequence[Job], taken: Sequence[int], unit: str | None, left: float) -> int | None:
    """The next job's index: of this unit, else of the first unit that no process has begun, else any.

    Args:
        taken: for each job the number of the process that has taken it, from 1 on, or 0.
        unit: of the process's last job.
        left: seconds; a job that is known to take longer is left alone.
    """
    free = [index for index, job in enumerate(jobs) if not taken[index] and job.seconds <= left]
    begun = {job.unit for index, job in enumerate(jobs) if taken[index]}
    own = [index for index in free if jobs[index].unit == unit]
    fresh = [index for index in free if jobs[index].unit not in begun]
    return next(iter(own or fresh or free), None)


def _work(number: int, gpus: int, jobs: Sequence[Job], taken, outcomes, until: float | None, setup) -> None:
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(number % gpus)
    do, unit = setup(), None
    while True:
        left = until - time.monotonic() if until else float("inf")
        with taken.get_lock():
            index = next_job(jobs, taken, unit, left)
            if index is None:
                return
            taken[index] = number + 1
        unit, started, value, error = jobs[index].unit, time.monotonic(), None, None
        try:
            value = do(jobs[index].task)
        except Exception:
            error = traceback.format_exc()
        outcomes.put((index, value, error, time.monotonic() - started))
        if error and gpus and _device_is_lost():
            _leave(outcomes, LOST_DEVICE)


def _device_is_lost() -> bool:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _leave(outcomes, status: int) -> NoReturn:
    outcomes.close()
    outcomes.join_thread()  # what was put is on its way
    os._exit(status)  # the interpreter's end would touch the lost context


class _Crew:
    """The processes that work through `jobs`, and what came of these so far (`ended`).

    Args:
        until: on the clock of `time.monotonic`; no job begins that would take longer. None: whatever time is left.

    The others are those of `work_through`.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        setup: Callable[[], Callable[[Any], Any]],
        processes: int,
        gpus: int,
        until: float | None,
        done: Callable[[Outcome], None],
    ):
        self.jobs, self.setup, self.gpus, self.until, self.done = jobs, setup, gpus, until, done
        self.context = mp.get_context("spawn")
        self.taken, self.outcomes = self.context.Array("i", len(jobs)), self.context.Queue()
        self.ended: list[Outcome] = []
        self.reported: set[int] = set()
        self.broken: list[int] = []  # exit statuses of processes that nobody replaced
        self.restarts = 0
        self.workers: list[Any] = [self._start(number) for number in range(processes)]

    def _start(self, number: int):
        arguments = (number, self.gpus, self.jobs, self.taken, self.outcomes, self.until, self.setup)
        worker = self.context.Process(target=_work, args=arguments, daemon=True, name=str(number))
        worker.start()
        return worker

    def is_at_work(self) -> bool:
        return any(worker.is_alive() for worker in self.workers)

    def look_after(self) -> None:
        """Reports the jobs that have ended, and replaces the processes that were killed."""
        died = [worker for worker in self.workers if worker.exitcode]
        while not self.outcomes.empty():
            self._report(*self.outcomes.get())
        for worker in died:  # what it had put has been reported
            number = int(worker.name)
            for index, owner in enumerate(self.taken):
                if owner == number + 1:
                    self._report(index, None, f"its process ended with {worker.exitcode}", 0.0)
            self.workers.remove(worker)
            killed = worker.exitcode < 0 or worker.exitcode == LOST_DEVICE
            if killed and self.restarts < MOST_RESTARTS and not all(self.taken):
                self.restarts += 1
                print(f"process {number} ended with {worker.exitcode}: another takes its place", flush=True)
                self.workers.append(self._start(number))
            else:
                self.broken.append(worker.exitcode)

    def _report(self, index: int, value: Any, error: str | None, spent: float) -> None:
        if index in self.reported:  # its process died right after it
            return
        self.reported.add(index)
        self.ended.append(Outcome(self.jobs[index], value, error, spent))
        self.done(self.ended[-1])

    def kill(self) -> None:
        for worker in self.workers:
            if worker.is_alive():
                worker.kill()
                worker.join()


def work_through(
    jobs: Sequence[Job],
    setup: Callable[[], Callable[[Any], Any]],
    *,
    processes: int,
    gpus: int,
    seconds: float,
    fit: bool,
    done: Callable[[Outcome], None],
) -> list[Outcome]:
    """Does the jobs, as far as time allows, and gives what came of them; prints a line every 20 seconds.

    Args:
        setup: is called once in each process (and pickled for that), and gives the function that does a job.
        processes: how many; process k sees GPU k modulo `gpus` only.
        gpus: 0 leaves the choice of the device to the worker's function.
        seconds: then processes are killed, whatever they do.
        fit: do not begin a job that takes longer than what is left of `seconds`.
        done: is called here after each job.

    Raises:
        RuntimeError: processes ended, and left jobs that nobody does.
    """
    began = shown = time.monotonic()
    crew = _Crew(jobs, setup, processes, gpus, began + seconds if fit else None, done)
    at_work = True
    try:
        while at_work and time.monotonic() - began < seconds:
            at_work = crew.is_at_work()  # before the last outcomes are read
            crew.look_after()
            at_work = at_work or crew.is_at_work()
            if time.monotonic() - shown > 20 or not at_work:
                shown = time.monotonic()
                failed = sum(outcome.error is not None for outcome in crew.ended)
                counts = f"{len(crew.ended)} of {len(jobs)} done, {failed} of them failed"
                print(f"{shown - began:5.0f} s: {counts}", flush=True)
            if at_work:
                time.sleep(0.2)
    finally:  # also when this process is told to stop
        crew.kill()
    if crew.broken and not all(crew.taken):
        raise RuntimeError(f"processes ended with {crew.broken}, and jobs are left: see their messages above")
    busy = sum(outcome.seconds for outcome in crew.ended)
    print(f"{len(crew.ended)} of {len(jobs)} done, {time.monotonic() - began:.0f} s, {busy:.0f} s in jobs", flush=True)
    return crew.ended


def ended_well(outcomes: Sequence[Outcome]) -> bool:
    """Whether no job failed; prints the failures of each kind once."""
    seen = set()
    for outcome in outcomes:
        if outcome.error and (kind := outcome.error.strip().splitlines()[-1][:100]) not in seen:
            seen.add(kind)
            print(f"FAILED {outcome.job.name}: {kind}", file=sys.stderr)
    return not seen
