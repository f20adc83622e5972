"""What a sweep asks of Slurm beyond submitting jobs: that their end can be seen, and that none is left behind.

The jobs are submitit's; squeue(1), scancel(1) and sacct(1) say what the commands do.
"""

import re
import subprocess
import sys
import time
import uuid
from types import TracebackType
from typing import Any

POLL_SECONDS = 2.0
TIMEOUT = 120.0  # seconds for one command: Slurm's own repeat their requests for about a minute


class SlurmFailed(RuntimeError):
    """A command of Slurm's gave no answer; the message says which, and why."""


class SlurmJobs:
    """The jobs of one sweep. If its block ends with an exception, those still queued or running are cancelled.

    Args:
        params: of submitit's Slurm launcher. Within the block its jobs have a name that no others have, `name`; after
            it `params` is as it was, since a search has a block for each batch.
    """

    def __init__(self, params: dict[str, Any]):
        self.params, self.given = params, params["name"]
        self.name = f"{self.given}-{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> "SlurmJobs":
        self.params["name"] = self.name
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.params["name"] = self.given
        if kind is not None:
            try:
                _slurm("scancel", "--me", f"--name={self.name}")
            except SlurmFailed as failure:
                print(f"{failure}: jobs may be left, see squeue --me --name={self.name}", file=sys.stderr)

    def wait(self) -> None:
        """Returns when none is queued or running; raises SlurmFailed when Slurm does not say."""
        while _slurm("squeue", "--me", "--noheader", f"--name={self.name}").strip():
            time.sleep(POLL_SECONDS)


def slurm_jobs(launcher: Any) -> SlurmJobs | None:
    """Those that Hydra's `launcher` will submit; None if it does not submit to Slurm.

    Raises:
        ValueError: Slurm keeps no accounts. submitit asks `sacct` whether a job has ended without a result, and would
            wait for a cancelled one forever.
    """
    if type(launcher).__name__ != "SlurmLauncher":
        return None
    missing = _missing_of_accounting()
    if missing is not None:
        raise ValueError(
            "hydra/launcher=slurm needs Slurm's accounting, or a sweep would wait for a killed job forever:"
            f" {missing}, or use hydra/launcher=processes"
        )
    return SlurmJobs(launcher.params)


def _missing_of_accounting() -> str | None:
    """What keeps this cluster's jobs from being accounted for, and how to fix it; None if nothing does."""
    try:
        _slurm("sacct", "--noheader", "--allocations")
    except SlurmFailed as failure:
        return f"{failure}. Set AccountingStorageType=accounting_storage/slurmdbd in slurm.conf"
    try:  # for a cluster that its database does not know, sacct succeeds and lists no jobs
        config = _slurm("scontrol", "show", "config")
        clusters = _slurm("sacctmgr", "--noheader", "--parsable2", "list", "clusters", "format=cluster")
    except SlurmFailed as failure:
        return f"{failure}. Ask your cluster's administrator"
    name = re.search(r"^ClusterName\s*=\s*(\S+)", config, re.MULTILINE)
    if name is None or name[1] not in clusters.split():
        cluster = name[1] if name else "NAME"
        return f"its database does not know the cluster. Register it with `sacctmgr add cluster {cluster}`"
    return None


def _slurm(*command: str) -> str:
    """The output of a command of Slurm's."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except FileNotFoundError:
        raise SlurmFailed(f"there is no command `{command[0]}`") from None
    except subprocess.TimeoutExpired:
        raise SlurmFailed(f"`{command[0]}` gave no answer in {TIMEOUT:.0f} s") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SlurmFailed(f"`{command[0]}` failed ({said})")
    return done.stdout
