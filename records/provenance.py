"""Where a record comes from: code, versions, machine, time. Nothing here is part of a result."""

import functools
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("mixerlab", "torch", "triton", "lightning", "hydra-core", "numpy", "fla-core")
# The variable in which the `mixerlab` command leaves what the user typed: it changes `sys.argv` for Hydra, and the
# processes of a launcher have arguments of their own.
COMMAND = "MIXERLAB_COMMAND"
_GIT_TIMEOUT = 10.0  # seconds


def provenance(
    *,
    started_at: datetime,
    code: Mapping[str, str],
    git: Mapping[str, Any],
    device: str = "",
    threads: int | None = None,
    instruction_set: str | None = None,
    precision: str | None = None,
    backends: Mapping[str, str] | None = None,
    sees_future: bool | None = None,
    notes: Sequence[str] = (),
    resumed_after_s: float = 0,
    training_s: float | None = None,
    tokens_per_s: float | None = None,
    peak_memory_mb: float | None = None,
) -> dict[str, Any]:
    """The `provenance` of a record that is written now.

    Args:
        started_at: when the process that ended the run began it, with a time zone.
        code: a hash of the code of each part of the run.
        git: what `git_state` gave when the run began.
        device: the name of the processor that trained; empty for a run that failed.
        threads, instruction_set: with which a CPU trained, such as 4 and AVX512, on which the last bits of its results
            depend; None on a GPU and for a run that failed.
        precision: the dtype of the matrix products; None for a run that failed.
        backends: what computed the mixing (a kernel or PyTorch), by mixer.
        sees_future: whether outputs depend on later inputs; None if nobody looked, as for the auto-encoder, or if it
            could not be told, as a note says.
        notes: what happened on the way, such as a population halved for lack of memory.
        resumed_after_s: seconds of training, by processes that were stopped, that the run went on from; `wall_time_s`
            includes them, but not what was trained between the last checkpoint and the stop.
        training_s: of them, and of this process, the seconds of training and of scoring each epoch.
        tokens_per_s: that all replicas together trained on in this process, in those seconds of it.
        peak_memory_mb: the most that tensors took on the GPU; None on a CPU, and where other runs shared graphs.
    """
    return {
        "started_at": started_at.isoformat(timespec="seconds"),
        "wall_time_s": (datetime.now(UTC) - started_at).total_seconds() + resumed_after_s,
        "resumed_after_s": resumed_after_s,
        "training_s": training_s,
        "tokens_per_s": tokens_per_s,
        "peak_memory_mb": peak_memory_mb,
        "device": device,
        "threads": threads,
        "instruction_set": instruction_set,
        "precision": precision,
        "backends": dict(backends or {}),
        "sees_future": sees_future,
        "code_version": dict(code),
        "versions": versions(),
        **git,
        "command": os.environ.get(COMMAND, shlex.join(sys.argv)),
        "notes": list(notes),
    }


def versions() -> dict[str, str]:
    """The versions of Python and of the installed packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache  # the code that runs is the code of the time it was imported: ask before a run, not after it
def git_state(*projects: Path) -> dict[str, Any]:
    """The commit of the checkout that this code is in, and whether it has changes since; None of an installed copy.

    Args:
        projects: the user's own folders of mixers and tasks, whose commits are told as well, as `project`, `project_2`
            and so on. Of files there that git does not track only those of Python are changes: results may lie there.
    """
    code = Path(__file__)
    state = _commit(code.parent, code.name, ":/")  # not of another repository, in which a copy is installed
    names = ("project", *(f"project_{number}" for number in range(2, len(projects) + 1)))
    return state | {name: _commit(project, ".", "*.py") for name, project in zip(names, projects, strict=False)}


def _commit(folder: Path, tracked: str, new: str) -> dict[str, Any]:
    """Of the repository that `folder` is in; None if `tracked`, a path there, is no part of it, or git does not say.

    Of files that git does not track, those count as changes that the pattern `new` has.
    """

    def git(*args: str) -> str:
        # Without its locks, which could refuse a commit that the user makes at the moment.
        command = ["git", "--no-optional-locks", "-C", str(folder), *args]
        done = subprocess.run(command, capture_output=True, check=True, timeout=_GIT_TIMEOUT)
        return done.stdout.decode(errors="replace").strip()  # a file's name may be in any encoding

    try:
        git("ls-files", "--error-unmatch", tracked)
        commit = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no") or git("status", "--porcelain", "--", new)
        return {"git_commit": commit, "git_dirty": bool(changes)}
    except (OSError, subprocess.SubprocessError):  # no git, no repository, one of another user, or a huge one
        return {"git_commit": None, "git_dirty": None}
