"""Chooses the GPU of a process on a host with several GPUs: one that the fewest other processes use."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import torch

_held: list[int] = []  # the open file whose lock says that this process uses its GPU


def claim_gpu() -> None:
    """Makes this process see only one GPU: one that the fewest running processes have claimed.

    If there are at most as many processes as GPUs, each has a GPU to itself; otherwise they share evenly. On a host
    with at most one GPU this does nothing. It must run before CUDA starts in this process. The claim is a lock on a
    file; the operating system releases it however the process ends.
    """
    if _held or torch.cuda.device_count() < 2:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else map(str, range(torch.cuda.device_count()))
    gpus = [gpu.strip() for gpu in gpus]
    folder = Path(tempfile.gettempdir())
    with _locked(folder / "mixerlab-gpus.lock"):
        gpu = min(gpus, key=lambda gpu: sum(_is_held(path) for path in folder.glob(f"{_prefix(gpu)}*.lock")))
        # Not the process id: containers that share this folder have equal ones, and this would wait for another's.
        lock = _open(folder / f"{_prefix(gpu)}{uuid4().hex}.lock")
        fcntl.flock(lock, fcntl.LOCK_EX)
    _held.append(lock)
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def _prefix(gpu: str) -> str:
    return f"mixerlab-gpu-{gpu.replace('/', '_')}-user-"  # `gpu`: an index, a UUID, or the path of a MIG instance


def _open(path: Path) -> int:
    """A lock file, made if it is missing. Reading suffices for a lock, so another user's file works too."""
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY)
        with suppress(FileExistsError):  # another process has just made it
            lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
            os.fchmod(lock, 0o644)  # whatever the umask is
            return lock


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock on the file at `path`, which one process at a time can have."""
    lock = _open(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _is_held(path: Path) -> bool:
    """Whether a running process holds the lock on this file. Removes the file if its process has ended."""
    lock = _open(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        with suppress(PermissionError):  # another user's file, in a folder where only the owner may remove files
            path.unlink()
        return False
    finally:
        os.close(lock)
