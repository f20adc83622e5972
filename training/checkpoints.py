"""The checkpoint that an interrupted run continues from.

The file holds one line, `mixerlab checkpoint 1 sha256 <64 hex digits>`, and then what `torch.save` writes, of which the
digest is. PyTorch itself looks at no checksum: of fourteen checkpoints with a block of zeros twelve were loaded.
"""

import hashlib
import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from mixerlab.records.atomic import read_bytes, replace_file

_MAGIC = b"mixerlab checkpoint 1 sha256 "
_DIGITS = 64
LARGEST = 1 << 40  # bytes


class DamagedCheckpoint(ValueError):
    """The file is no checkpoint of ours, or is not as it was written."""


def write_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Writes a checkpoint with its digest, in place of an earlier one, whole or not at all.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    stream = io.BytesIO()
    torch.save(checkpoint, stream)
    payload = stream.getbuffer()
    digest = hashlib.sha256(payload).hexdigest().encode()
    replace_file(path, b"".join((_MAGIC, digest, b"\n", payload)))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` has written, with its tensors on the CPU.

    Only tensors and plain Python values are made of it (`weights_only`): nothing in the file is run.

    Raises:
        DamagedCheckpoint: says why.
        OSError: the file may be whole, and could not be read: no permission, an error of the disk.
    """
    try:
        content = read_bytes(path, LARGEST)
    except ValueError as error:
        if isinstance(cause := error.__cause__, OSError):
            raise OSError(cause.errno, f"the checkpoint cannot be read: {cause.strerror}", str(path)) from error
        raise DamagedCheckpoint(str(error)) from error
    head = len(_MAGIC) + _DIGITS
    if not content.startswith(_MAGIC) or content[head : head + 1] != b"\n":
        raise DamagedCheckpoint("it does not begin as a checkpoint of mixerlab does")
    payload = memoryview(content)[head + 1 :]
    if hashlib.sha256(payload).hexdigest().encode() != content[len(_MAGIC) : head]:
        raise DamagedCheckpoint("its content is not what was written")
    try:
        checkpoint = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as error:  # a stranger's file with a digest of its own fails in any way; it costs its epochs only
        raise DamagedCheckpoint(f"PyTorch cannot load it: {type(error).__name__}") from error
    if not isinstance(checkpoint, dict):
        raise DamagedCheckpoint("it holds no dict")
    return checkpoint


def set_aside(path: Path) -> Path:
    """Renames a checkpoint that is of no use to `*.damaged`, in place of an earlier one; returns the new path."""
    return path.replace(path.with_name(f"{path.name}.damaged"))


# Files that hold the digest of the record that was there when a training by force began, and when it began to replace
# what stands beside that record.
_BY_FORCE, _REPLACING = "resume-by-force", "resume-replacing"


def begin_by_force(folder: Path, record: bytes | None) -> None:
    """Has training begin from the start, unless it was by force before and was interrupted: then it goes on.

    Args:
        record: what the folder's `record.json` holds now, None if there is none.
    """
    if not is_interrupted_by_force(folder, record):
        forget_checkpoints(folder)
        replace_file(folder / _BY_FORCE, _digest(record))


def is_interrupted_by_force(folder: Path, record: bytes | None) -> bool:
    """Whether a training by force has begun since this record was written, and has neither finished nor failed."""
    return _is_of(folder / _BY_FORCE, record)


def begin_replacing(folder: Path, record: bytes | None) -> None:
    """Notes that from now on files beside this record, which is replaced last, are those of a training by force."""
    replace_file(folder / _REPLACING, _digest(record))


def is_half_replaced(folder: Path, record: bytes | None) -> bool:
    """Whether a training by force was stopped while it replaced the files beside this record: it must be completed."""
    return _is_of(folder / _REPLACING, record)


def end_by_force(folder: Path) -> None:
    """Has the next training by force begin from the start."""
    (folder / _BY_FORCE).unlink(missing_ok=True)


def _is_of(file: Path, record: bytes | None) -> bool:
    """Whether there is such a file, and it has the digest of this record."""
    try:
        return file.read_bytes() == _digest(record).encode()
    except FileNotFoundError:
        return False


def _digest(record: bytes | None) -> str:
    return "none" if record is None else hashlib.sha256(record).hexdigest()


def forget_checkpoints(folder: Path) -> None:
    """Removes what training in `folder` could go on from, and what was set aside."""
    for file in folder.glob("resume-*"):
        with suppress(IsADirectoryError):  # a folder is not ours
            file.unlink(missing_ok=True)
