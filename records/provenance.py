"""Where a record comes from: code, versions, machine, time. Nothing here is part of a result."""

import functools
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import mixerlab

PACKAGES = ("mixerlab", "torch", "triton", "lightning", "hydra-core", "numpy", "fla-core")
COMMAND = "mixerlab.command"  # in the cache of a config: what trains its run, where `sys.argv` is another command

# What a training says of itself; as here where it failed.
_UNKNOWN: dict[str, Any] = {
    "device": "",  # the name of the processor that trained
    # With which a CPU trained, such as 4 and AVX512: the last bits of results depend on them. None on a GPU.
    "threads": None,
    "instruction_set": None,
    "precision": None,  # the dtype of the matrix products
    "backends": {},  # what computed the mixing (a kernel or PyTorch), by mixer
    # Whether outputs depend on later inputs; None if nobody looked, as for the auto-encoder, or could not tell.
    "sees_future": None,
    "notes": [],  # what happened on the way, such as a population halved for lack of memory
    # Seconds of training, by processes that were stopped, that the run went on from; `wall_time_s` includes them, but
    # not what was trained between the last checkpoint and the stop.
    "resumed_after_s": 0,
    "training_s": None,  # of them, and of this process, the seconds of training and of scoring each epoch
    "tokens_per_s": None,  # that all replicas together trained on in this process, in those seconds of it
    "peak_memory_mb": None,  # that tensors took on the GPU; None on a CPU
}


def shell_command(program: str, *arguments: str) -> str:
    """The command of a shell that runs `sys.argv[0]` with these arguments."""
    if Path(program) == Path(mixerlab.__path__[0], "__main__.py"):  # as a script it would find our `mixers`, not theirs
        return shlex.join(["python", "-m", "mixerlab", *arguments])
    return shlex.join([*(["python"] if program.endswith(".py") else []), program, *arguments])


def provenance(
    *, started_at: datetime, code: Mapping[str, str], git: Mapping[str, Any], command: str | None, **measured: Any
) -> dict:
    """The `provenance` of a record that is written now; what is `measured` stands in place of `_UNKNOWN`.

    The process that ended the run began it at `started_at`. `command` is None if it is that of this process.
    """
    known = _UNKNOWN | measured
    return known | {
        "started_at": started_at.isoformat(timespec="seconds"),
        "wall_time_s": (datetime.now(UTC) - started_at).total_seconds() + known["resumed_after_s"],
        "code_version": dict(code),
        "versions": versions(),
        **git,
        "command": command or shell_command(*sys.argv),
    }


def versions() -> dict[str, str]:
    """Of Python and of the installed packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@functools.cache  # the code that runs is the code of the time it was imported: ask before a run, not after it
def git_state(*projects: Path) -> dict[str, Any]:
    """The commit of the checkout that this code is in, and whether it has changes since; None of an installed copy.

    Those of `projects`, the user's own folders, are told as well, as `project`, `project_2` and so on. Of files there
    that git does not track only those of Python are changes: results may lie there.
    """
    code = Path(__file__)
    state = _commit(code.parent, code.name, ":/")  # not of another repository, in which a copy is installed
    for number, project in enumerate(projects, 1):
        state["project" if number == 1 else f"project_{number}"] = _commit(project, ".", "*.py")
    return state


def _commit(folder: Path, tracked: str, new: str) -> dict[str, Any]:
    """Of the repository that `folder` is in; None if `tracked`, a path there, is no part of it, or git does not say.

    Of files that git does not track, those count as changes that the pattern `new` has.
    """

    def git(*args: str) -> str:
        # Without its locks, which could refuse a commit that the user makes at the moment.
        command = ["git", "--no-optional-locks", "-C", str(folder), *args]
        done = subprocess.run(command, capture_output=True, check=True, timeout=10)
        return done.stdout.decode(errors="replace").strip()  # a file's name may be in any encoding

    try:
        git("ls-files", "--error-unmatch", tracked)
        commit = git("rev-parse", "HEAD")
        changes = git("status", "--porcelain", "--untracked-files=no") or git("status", "--porcelain", "--", new)
        return {"git_commit": commit, "git_dirty": bool(changes)}
    except (OSError, subprocess.SubprocessError):  # no git, no repository, one of another user, or a huge one
        return {"git_commit": None, "git_dirty": None}
