"""The cells of a sweep as jobs of Slurm, which submitit submits; squeue(1) says which have ended.

Not submitit's own watching, by sacct(1): it needs a cluster that keeps accounts, and without one waits for a cancelled
job forever.
"""

import importlib.util
import math
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from tqdm import tqdm

from mixerlab.records.errors import one_line
from mixerlab.records.interruption import Terminated
from mixerlab.sweeps.launch.executors import Ended, Train, attempt

if TYPE_CHECKING:
    from mixerlab.sweeps.launch.cells import Cell

ASK_SECONDS = 10.0  # between two questions to Slurm, which answers all its users
TIMEOUT = 120.0  # seconds for one command: Slurm's own repeat their requests for about a minute


class SlurmJobs:
    """An executor of Slurm jobs. A job that ends without a result (cancelled, killed, out of time) is lost.

    Args:
        train: see `Train`.
        folder: all nodes can reach it; submitit keeps its files in `.submitit/`.
        options: of submitit's `SlurmExecutor`; what is None is left to it.

    Raises:
        ValueError: there is no submitit or no Slurm here, or submitit refuses the options.
    """

    slots = math.inf

    def __init__(self, train: Train, folder: Path, **options: Any):
        if importlib.util.find_spec("submitit") is None:
            raise ValueError("hydra/launcher=slurm needs submitit: pip install -e '.[cluster]'")
        import submitit

        self.train = train
        self.name = f"mixerlab-{uuid.uuid4().hex[:8]}"  # no other jobs have it
        params = {key: value for key, value in options.items() if value is not None}
        try:
            limit = params.pop("max_num_timeout", 0)
            self.submitit = submitit.SlurmExecutor(folder / ".submitit" / "%j", max_num_timeout=limit)
        except RuntimeError as error:  # there is no srun
            raise ValueError(f"hydra/launcher=slurm: {one_line(error)} Or use hydra/launcher=processes") from error
        self.submitit.update_parameters(name=self.name, **params)
        self.waiting: list[Cell] = []
        self.jobs: dict[Cell, Any] = {}
        self.missing: set[Cell] = set()  # whose job was not in the queue when it was last asked
        self.asked_at = -math.inf

    def submit(self, cell: "Cell") -> None:
        self.waiting.append(cell)

    def poll(self, seconds: float) -> list[Ended]:
        if self.waiting:
            self._submit_waiting()
        time.sleep(seconds)
        queued = self._queued()
        ended = []
        for cell, job in self.jobs.items():
            if job.paths.result_pickle.exists():
                ended.append(_result(cell, job))
            elif queued is not None and job.job_id not in queued:
                if cell in self.missing:  # for the second time: its result may take a while to cross the file system
                    ended.append(Ended(cell, error=_last_words(job), is_lost=True))
                self.missing.add(cell)
        for cell, *_ in ended:
            del self.jobs[cell]
            self.missing.discard(cell)
        return ended

    def stop(self) -> None:
        if self.jobs or self.waiting:  # which sbatch may have got already
            try:
                _slurm("scancel", "--me", f"--name={self.name}")
            except OSError as error:
                print(f"{error}: jobs may be left, see squeue --me --name={self.name}", file=sys.stderr)

    def _submit_waiting(self) -> None:
        """As one array, of which Slurm runs as many at a time as `array_parallelism` says."""
        try:
            with self.submitit.batch():
                jobs = [self.submitit.submit(_Job(self.train, cell.cfg)) for cell in self.waiting]
        except Exception as error:  # what sbatch says
            raise ValueError(f"hydra/launcher=slurm: {one_line(error)}") from error
        self.jobs |= zip(self.waiting, jobs, strict=True)
        self.waiting = []

    def _queued(self) -> set[str] | None:
        """The ids of the jobs that wait or run; None if that is not known at the moment."""
        now = time.monotonic()
        if not self.jobs or now - self.asked_at < ASK_SECONDS:
            return None
        self.asked_at = now
        try:
            return set(_slurm("squeue", "--me", "--noheader", "--array", f"--name={self.name}", "--format=%i").split())
        except OSError as error:  # Slurm's controller may start again; the jobs train on
            tqdm.write(f"{error}: asking again", file=sys.stderr)
            return None


class _Job:
    """What a job does. submitit calls `checkpoint` when the job is preempted or out of time, and queues it again."""

    def __init__(self, train: Train, cfg: DictConfig):
        self.train, self.cfg = train, cfg

    def __call__(self) -> tuple[str | None, str | None]:
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # one of them has submitit's handler, which exits or raises
            handler = signal.getsignal(number)
            if callable(handler):
                signal.signal(number, _interrupting(handler))
        return attempt(self.train, self.cfg)

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _interrupting(handler: Any) -> Any:
    """A handler of a signal that raises `Terminated` where `handler` raises: it is not the run that failed."""

    def interrupt(number: int, frame: Any) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raise Terminated(128 + number) from error

    return interrupt


def _result(cell: "Cell", job: Any) -> Ended:
    error = job.exception()
    if error is not None:  # of submitit: `attempt` has none
        return Ended(cell, error=one_line(error), is_lost=True)
    return Ended(cell, *job.result())


def _last_words(job: Any) -> str:
    lines = (job.stderr() or "").strip().splitlines()
    return f"Slurm's job {job.job_id} ended without a result: {lines[-1] if lines else 'it wrote nothing'}"


def _slurm(*command: str) -> str:
    """The output of a command of Slurm's. OSError: it failed, or there is none; the message says which, and why."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
        raise OSError(f"`{command[0]}` failed ({said})") from error
    except subprocess.TimeoutExpired as error:
        raise OSError(f"`{command[0]}` gave no answer in {TIMEOUT:.0f} s") from error
