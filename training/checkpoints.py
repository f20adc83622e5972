"""The checkpoint that an interrupted run continues from.

The file holds one line, `mixerlab checkpoint 1 sha256 <64 hex digits>`, and then what `torch.save` writes, of which the
digest is. PyTorch itself looks at no checksum: of fourteen checkpoints with a block of zeros twelve were loaded.
"""

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mixerlab.records.atomic import replace_file
from mixerlab.records.errors import reason
from mixerlab.training.trainer_config import TrainerConfig

Replicas = Sequence[tuple[float, int]]  # learning rate and seed of each

_MAGIC = b"mixerlab checkpoint 1 sha256 "


class DamagedCheckpoint(ValueError):
    """The file is no checkpoint of ours, is not as it was written, or does not fit the run."""


def checkpoint_name(replicas: Replicas, code: Mapping[str, str] | None, config: TrainerConfig) -> str:
    """Its rows are those of these replicas in this order, trained by this code, with the same weights kept.

    A run killed on a GPU must not go on on a CPU, whose generator draws another order of rows. The first part of the
    name is the same for these replicas in any order and trained in any way.
    """
    way = list(replicas), code, config.device_type, config.dtype, config.selections_kept, list(config.snapshots)
    return f"resume-{_short_hash(sorted(replicas))}-{_short_hash(way)}.ckpt"


def _short_hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


def write_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Writes a checkpoint with its digest, in place of an earlier one, whole or not at all.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    stream = io.BytesIO()
    torch.save(checkpoint, stream)
    payload = stream.getbuffer()
    replace_file(path, b"".join((_head(payload), payload)))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` has written, with its tensors on the CPU.

    Only tensors and plain Python values are made of it (`weights_only`): nothing in the file is run.

    Raises:
        DamagedCheckpoint: says why.
        OSError: the file may be whole, and could not be read: no permission, an error of the disk.
    """
    try:
        content = memoryview(path.read_bytes())
        size = len(_head(b""))
        if content[:size] != _head(content[size:]):
            raise ValueError("it is not what was written")
        return dict(torch.load(io.BytesIO(content[size:]), map_location="cpu", weights_only=True))
    except OSError:
        raise
    except Exception as error:
        raise DamagedCheckpoint(reason(error)) from error


def _head(payload: bytes | memoryview) -> bytes:
    """The first line of a checkpoint."""
    return _MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n"
