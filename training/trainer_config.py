"""How long, how and on which device a run trains: the keys of `conf/trainer`, and the GPU of a process."""

import itertools
import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from mixerlab.records.claims import try_lock

# The selections whose weights are kept, by `trainer.keep_weights`.
KEPT: dict[str, tuple[str, ...]] = {
    "auto": ("official",),
    "none": (),
    "official": ("official",),
    "clean": ("clean",),
    "both": ("official", "clean"),
}
_held: list[int] = []  # the open file whose lock says that this process uses its GPU


@dataclass(frozen=True)
class TrainerConfig:
    """How long and how a run trains: the keys of `conf/trainer/default.yaml`, which says what each of them means.

    Raises:
        ValueError: a number out of its range.
    """

    epochs: int
    batch_size: int
    precision: Literal["auto", "bf16", "float32"]
    cuda_graph: bool
    replicas: Literal["auto", "vmap", "loop"]
    compile: Literal["auto"] | bool
    accelerator: Literal["auto", "cpu", "gpu"]
    stop_when_perfect: bool
    stop_above: float | None
    checkpoint_every: float
    keep_weights: Literal["auto", "none", "official", "clean", "both"]
    snapshots: Sequence[int]
    progress: bool
    eval_every: int | None = None
    accumulate: int = 1

    def __post_init__(self):
        for key in ("epochs", "batch_size", "eval_every", "accumulate"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise ValueError(f"trainer.{key}={value} must be at least 1")
        if not 0 <= self.checkpoint_every < math.inf:
            raise ValueError(f"trainer.checkpoint_every={self.checkpoint_every} must be a finite number >= 0")
        if self.stop_above is not None and not 0 <= self.stop_above < math.inf:
            raise ValueError(f"trainer.stop_above={self.stop_above} must be a finite score of at least 0, or null")
        most = self.epochs if self.eval_every is None else math.inf
        if any(type(done) is not int or not 0 <= done <= most for done in self.snapshots):
            raise ValueError(
                f"trainer.snapshots={list(self.snapshots)} must be numbers of epochs, from 0 (the initial values) to"
                f" trainer.epochs={self.epochs}"
            )

    @property
    def selections_kept(self) -> tuple[str, ...]:
        """The selections whose weights are kept."""
        return KEPT[self.keep_weights]

    @property
    def device_type(self) -> str:
        """`cpu` or `gpu`: Lightning would pick any accelerator under "auto"."""
        return ("gpu" if torch.cuda.is_available() else "cpu") if self.accelerator == "auto" else self.accelerator

    @property
    def dtype(self) -> torch.dtype:
        """In which it computes: bfloat16 is autocast, with float32 parameters."""
        return torch.bfloat16 if self.bf16 else torch.float32

    @property
    def bf16(self) -> bool:
        """Whether that is bfloat16."""
        return self.precision == "bf16" or (self.precision == "auto" and self.device_type == "gpu")


def steps_of(trained_rows: int, num_rows: int, batch_size: int) -> int:
    """Steps that train on so many rows, in passes over `num_rows`; the last step of a pass may have fewer."""
    passes, left = divmod(trained_rows, num_rows)
    return passes * math.ceil(num_rows / batch_size) + math.ceil(left / batch_size)


def claim_gpu() -> None:
    """Makes this process see only one GPU of a host with several; the processes of a host share its GPUs evenly.

    Each GPU has lock files number 0, 1, ..., one for a process, in the folder for temporary files. A process takes the
    first one that is free: the lowest number, then the first GPU. The operating system frees it however the process
    ends. This must run before CUDA starts in this process.
    """
    if _held or torch.cuda.device_count() < 2:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else map(str, range(torch.cuda.device_count()))
    gpus = [name.strip() for name in names]  # an index, a UUID, or the path of a MIG instance
    for number in itertools.count():
        for gpu in gpus:
            lock = _open(Path(tempfile.gettempdir(), f"mixerlab-gpu-{gpu.replace('/', '_')}-{number}.lock"))
            if try_lock(lock):
                _held.append(lock)
                os.environ["CUDA_VISIBLE_DEVICES"] = gpu
                return
            os.close(lock)


def _open(path: Path) -> int:
    """A lock file, made if it is missing. Reading suffices for a lock, so another user's file works too."""
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY)
        with suppress(FileExistsError):  # another process has just made it
            lock = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
            os.fchmod(lock, 0o644)  # whatever the umask is
            return lock
