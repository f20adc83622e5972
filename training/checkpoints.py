"""The checkpoint that an interrupted run continues from: what `torch.save` writes."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mixerlab.records.atomic import replace_file
from mixerlab.training.trainer_config import TrainerConfig

Replicas = Sequence[tuple[float, int]]  # learning rate and seed of each


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
    """Writes a checkpoint in place of an earlier one, whole or not at all.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    stream = io.BytesIO()
    torch.save(checkpoint, stream)
    replace_file(path, stream.getvalue())


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What `write_checkpoint` has written, with its tensors on the CPU.

    Only tensors and plain Python values are made of it (`weights_only`): nothing in the file is run.
    """
    return dict(torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True))
