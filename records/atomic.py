"""Files that survive a kill and a full disk: `replace_file` writes each of a results folder whole or not at all."""

import os
import re
import uuid
from pathlib import Path

_LEFTOVER = re.compile(r"\..+\.[0-9a-f]{32}")  # a file that a writer has not finished


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes `path` so that a reader sees the old file or the new one, whatever dies when.

    OSError with the name `path` if the disk is full or the folder cannot be written; the old file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    rest = memoryview(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
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


def remove_leftovers(folder: Path) -> None:
    """Removes what writers that died have left in `folder`; nobody else may be writing there."""
    for path in folder.glob(".*"):
        if _LEFTOVER.fullmatch(path.name):
            path.unlink(missing_ok=True)
