"""The claim on a folder: one process at a time trains a run, or writes a report."""

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from mixerlab.records.text import one_line

CLAIM_FILE = ".claim"
_EPOCH = "; epoch "
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


def try_lock(descriptor: int) -> bool:
    """Whether this process now has the lock on an open file. The kernel keeps it until the file is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def claim(folder: str | Path, patience: float = 0) -> Iterator[bool]:
    """Claims a folder for this process, and makes it: yields True if it is ours, False if a living process has it.

    The claim ends with the process however that dies. Its file says who holds it (`holder`), and stays: removing it
    would let two processes hold two files of one name. After claiming a run, ask whether it is finished: the former
    holder may just have written its record. Locks of some network file systems do not hold between hosts: there the
    record of the last process stays. With `patience` it tries for so many seconds.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / CLAIM_FILE, patience) as descriptor:
        if descriptor is not None:
            since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode(), 0)
        yield descriptor is not None


def is_claimed(folder: str | Path) -> bool:
    """Whether a living process has the folder. Raises like `claim`."""
    path = Path(folder) / CLAIM_FILE
    if not path.exists():
        return False
    with _locked(path) as descriptor:
        return descriptor is None


def note_epochs(folder: str | Path, done: int, total: int) -> None:
    """Adds to the claim that this process has on a run how far it is: `; epoch 3 of 60`."""
    said = f"{holder(folder).partition(_EPOCH)[0]}{_EPOCH}{done} of {total}"
    with suppress(OSError):  # nobody has claimed it, or the disk is full
        descriptor = os.open(Path(folder) / CLAIM_FILE, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, os.pwrite(descriptor, said.encode(), 0))  # the lock is on this file: no new one
        finally:
            os.close(descriptor)


def share_done(folder: str | Path) -> float:
    """The share of its epochs that the run in a folder is noted to have; 0 without a note."""
    try:
        done, total = holder(folder).partition(_EPOCH)[2].split(" of ")
        return min(1.0, int(done) / int(total))
    except ValueError:
        return 0.0


def holder(folder: str | Path) -> str:
    """Who has the folder, and since when: `process 4711 on host.example since 2026-01-02 03:04:05 UTC`."""
    said = ""
    with suppress(OSError):
        said = (Path(folder) / CLAIM_FILE).read_text(errors="replace")
    return one_line(said) or "a process that has not said which"


@contextmanager
def _locked(path: Path, patience: float = 0) -> Iterator[int | None]:
    """The descriptor of the locked file, or None if another process has had the lock for `patience` seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    ours, until = False, time.monotonic() + patience
    try:
        while not (ours := try_lock(descriptor)) and time.monotonic() < until:
            time.sleep(0.02)
        yield descriptor if ours else None
    except OSError as error:
        if ours or error.errno not in _NO_LOCKS:
            raise
        raise ValueError(
            f"{path} cannot be locked ({error.strerror}): the file system has no locks, without which two processes"
            " may train the same run; give results_dir=DIR on another one"
        ) from error
    finally:
        if ours:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child just being forked may still share it
        os.close(descriptor)
