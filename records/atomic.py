"""Files that survive a kill, a full disk and a stranger: written whole or not at all, read only if they are files.

Every file of a results folder is written by `replace_file` and read by `read_bytes`.
"""

import errno
import os
import re
import stat
import uuid
from contextlib import suppress
from pathlib import Path

# Names of files that a writer has not finished: `.record.json.<32 hex digits>`.
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{32}")


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes `path` so that a reader sees the old file or the new one, whatever dies when.

    Raises:
        OSError: the disk is full, or the folder cannot be written, with the name `path`; the old file is as it was.
    """
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    rest = memoryview(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)  # the new name must not come to disk before what it names
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError as error:
        error.filename = str(path)  # os.write and os.fsync name none, and os.open the temporary one
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Makes a folder of a results folder, if it is not there; `ValueError` if it is a link, which may lead anywhere."""
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link, behind which nothing is written: remove it")
    folder.mkdir(parents=True, exist_ok=True)


def sync_folder(folder: Path) -> None:
    """Brings what was renamed and removed in `folder` to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a plain file of at most `most` bytes.

    A link is not followed, a pipe is not waited for: what is in a results folder may be a stranger's.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is a link, no plain file, or too large.
        OSError: it may be whole, and cannot be read.
    """
    descriptor = open_plain(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        if status.st_size > most:
            raise ValueError(f"it has {status.st_size:,} bytes, and such a file has at most {most:,}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(descriptor)


def open_plain(path: Path, flags: int) -> int:
    """The descriptor of a plain file, opened with these flags of `os.open`; raises like `read_bytes`."""
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link, which is not followed") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("it is no plain file")
    return descriptor


def remove_leftovers(folder: Path) -> None:
    """Removes what writers that died have left in `folder`; nobody else may be writing there."""
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(folder)):
            if _LEFTOVER.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
