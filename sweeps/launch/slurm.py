"""The cells of a sweep as jobs of Slurm, which submitit submits; squeue(1) says which have ended.

submitit itself asks sacct(1), which needs a cluster that keeps accounts, and would wait for a cancelled job forever.
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

from mixerlab.records.errors import Terminated, message_of
from mixerlab.sweeps.launch.executors import Ended, Train, attempt

if TYPE_CHECKING:
    from mixerlab.sweeps.launch.cells import Cell

ASK_SECONDS = 10.0  # between two questions to Slurm, which answers all its users
SUBMITIT_OPTIONS = ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")
TIMEOUT = 120.0  # seconds for one command: Slurm's own repeat their requests for about a minute


class SlurmJobs:
    """An executor of Slurm jobs. A job that ends without a result (cancelled, killed, out of time) is lost.

    submitit's files are in `folder`, which all nodes can reach. Of the `options` those of Slurm alone are without the
    prefix `slurm_`; what is None is left to Slurm.
    """

    slots: float = math.inf

    def __init__(self, train: Train, folder: str | Path, max_num_timeout: int = 0, **options: Any):
        if importlib.util.find_spec("submitit") is None:
            raise ValueError("hydra/launcher=slurm needs submitit: pip install 'mixerlab[cluster]'")
        import submitit

        self.train, self.name = train, f"mixerlab-{uuid.uuid4().hex[:8]}"  # no other jobs have this name
        try:
            self.submitit = submitit.AutoExecutor(
                Path(folder) / "%j", cluster="slurm", slurm_max_num_timeout=max_num_timeout
            )
        except RuntimeError as error:  # there is no srun
            raise ValueError(f"hydra/launcher=slurm: {message_of(error)}; processes needs none") from error
        own = {key if key in SUBMITIT_OPTIONS else f"slurm_{key}": value for key, value in options.items()}
        self.submitit.update_parameters(name=self.name, **{key: own[key] for key in own if own[key] is not None})
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
        queued = self._queued() if self.jobs and time.monotonic() - self.asked_at >= ASK_SECONDS else None
        ended = []
        for cell, job in self.jobs.items():
            if job.paths.result_pickle.exists():
                error = job.exception()  # of submitit: `attempt` raises none
                ended.append(Ended(cell, *job.result()) if error is None else _lost(cell, message_of(error)))
            elif queued is not None and job.job_id not in queued and cell in self.missing:
                # For the second time: its result may take a while to cross the file system.
                log = " ".join((job.stderr() or "").split())
                ended.append(_lost(cell, f"no result of Slurm's job {job.job_id}: {log[-300:]}"))
        for cell, *_ in ended:
            del self.jobs[cell]
        if queued is not None:
            self.missing = {cell for cell, job in self.jobs.items() if job.job_id not in queued}
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
            raise ValueError(f"hydra/launcher=slurm: {message_of(error)}") from error
        self.jobs |= zip(self.waiting, jobs, strict=True)
        self.waiting = []

    def _queued(self) -> set[str] | None:
        """The ids of the jobs that wait or run; None if Slurm does not say, as while its controller starts again."""
        self.asked_at = time.monotonic()
        try:
            return set(_slurm("squeue", "--me", "--noheader", "--array", f"--name={self.name}", "--format=%i").split())
        except OSError as error:
            tqdm.write(f"{error}: asking again", file=sys.stderr)
            return None


class _Job:
    """What a job does. submitit calls `checkpoint` when the job is preempted or out of time, and queues it again."""

    def __init__(self, train: Train, cfg: DictConfig):
        self.train, self.cfg = train, cfg

    def __call__(self) -> tuple[str | None, str | None]:
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # one of them has submitit's handler
            if callable(handler := signal.getsignal(number)):
                signal.signal(number, _terminating(handler))
        return attempt(self.train, self.cfg)

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def _terminating(handler: Any) -> Any:
    """A handler of a signal that raises `Terminated` where `handler` exits or raises: it is not the run that failed."""

    def terminate(number: int, frame: Any) -> None:
        try:
            handler(number, frame)
        except (Exception, SystemExit) as error:
            raise Terminated(128 + number) from error

    return terminate


def _lost(cell: "Cell", error: str) -> Ended:
    return Ended(cell, error=error, is_lost=True)


def _slurm(*command: str) -> str:
    """The output of a command of Slurm's. OSError: it failed, or there is none; the message says which, and why."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout
    except subprocess.SubprocessError as error:
        said = " ".join((getattr(error, "stderr", None) or str(error)).split())
        raise OSError(f"`{command[0]}` failed ({said})") from error
