"""Files that survive a kill, a full disk and a stranger: written whole or not at all, read only if they are files.

Every file of a results folder is written by `replace_file` or `publish_file` and read by `read_bytes`.
"""

import errno
import os
import re
import stat
import uuid
from contextlib import suppress
from pathlib import Path

# Names of files that a writer has not finished: `.record.json.<32 hex digits>`.
_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{32}(\.[a-z]+)?")
# What a file system says that has no hard links.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def temporary_beside(path: Path) -> Path:
    """A name of its own for each writer, which `remove_leftovers` knows; it ends as `path` does."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}{path.suffix}")


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes `path` so that a reader sees the old file or the new one, whatever dies when.

    Raises:
        OSError: the disk is full, or the folder cannot be written; the old file is as it was.
    """
    with _written(path, content) as temporary:
        os.replace(temporary, path)
    _sync_folder(path.parent)


def publish_file(path: Path, content: str | bytes) -> None:
    """Writes `path`, which must be new: of several processes one succeeds.

    Raises:
        FileExistsError: there is such a file.
        OSError: as `replace_file`.
    """
    with _written(path, content) as temporary:
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
            os.replace(temporary, path)
    _sync_folder(path.parent)


class _written:
    """Writes and syncs a temporary file beside `path`, and removes it at the end of the block if it is still there."""

    def __init__(self, path: Path, content: str | bytes):
        self.temporary = temporary_beside(path)
        self.content = content.encode() if isinstance(content, str) else content

    def __enter__(self) -> Path:
        self.temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            try:
                rest = memoryview(self.content)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)  # the new name must not come to disk before what it names
            finally:
                os.close(descriptor)
        except BaseException:
            self.temporary.unlink(missing_ok=True)
            raise
        return self.temporary

    def __exit__(self, *exception: object) -> None:
        self.temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
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
        ValueError: it is no plain file, is too large, or cannot be read; the message names neither file nor folder.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:  # what should be a folder above it is a file: there is none either
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link, which is not followed") from None
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no plain file")
        if status.st_size > most:
            raise ValueError(f"it has {status.st_size:,} bytes, and such a file has at most {most:,}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)
    except OSError as error:
        raise ValueError(f"it cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def remove_leftovers(folder: Path) -> None:
    """Removes what writers that died have left in `folder`; nobody else may be writing there."""
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(folder)):
            if _LEFTOVER.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink(missing_ok=True)
