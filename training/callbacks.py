"""What happens at the end of an epoch beside scoring: a checkpoint to resume from, and the progress that is shown."""

import hashlib
import io
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO
from tqdm import tqdm

from mixerlab.records.atomic import replace_file
from mixerlab.records.claims import note_epochs
from mixerlab.records.text import Lines, duration, is_terminal
from mixerlab.training.datamodule import PopulationData
from mixerlab.training.lit_module import PopulationTraining
from mixerlab.training.trainer_config import TrainerConfig

log = logging.getLogger(__name__)

Replicas = Sequence[tuple[float, int]]  # learning rate and seed of each


def checkpoint_name(replicas: Replicas, code: Mapping[str, str] | None, config: TrainerConfig) -> str:
    """Of the checkpoint of these replicas in this order, trained by this code, with the same weights kept.

    A run killed on a GPU must not go on on a CPU, whose generator draws another order of rows. The first part of the
    name is the same for these replicas in any order and trained in any way.
    """
    way = list(replicas), code, config.device_type, config.dtype, config.selections_kept, list(config.snapshots)
    return f"resume-{_short_hash(sorted(replicas))}-{_short_hash(way)}.ckpt"


def _short_hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


class ResumePoint(L.Callback):
    """Keeps one checkpoint at `path`, replaced atomically at the end of an epoch.

    A run at MAD sizes makes many epochs a second on a GPU, so a checkpoint is written at most every `every` seconds: a
    killed run loses that much, or the running epoch if that is longer. `at_end` writes one more when training is done.
    One that cannot be written, because the disk is full, costs a warning: the run goes on.

    Attributes:
        resumed_after_s: seconds that earlier trainings left in the checkpoint that this one continues; 0 without one.
        has_started: whether the checkpoint, if there was one, has been restored: an error before is its fault.
    """

    def __init__(self, path: Path, every: float, at_end: bool):
        self.path, self.every, self.at_end = path, every, at_end
        self.began = self.written_at = time.monotonic()
        self.resumed_after_s = 0.0
        self.has_started = False

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.has_started = True

    def state_dict(self) -> dict[str, Any]:
        return {"spent_s": self.resumed_after_s + time.monotonic() - self.began}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.resumed_after_s = float(state_dict["spent_s"])

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if time.monotonic() - self.written_at >= self.every:
            self._write(trainer, module)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.at_end:
            self._write(trainer, module)

    def on_load_checkpoint(self, trainer: L.Trainer, module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        done = len(checkpoint["history"])
        log.info("continuing from %s, after epoch %d of %s", self.path, done, trainer.max_epochs)

    def _write(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        try:
            trainer.save_checkpoint(self.path, weights_only=False)
        except OSError as error:
            assert isinstance(module, PopulationTraining)
            note = f"no checkpoint could be written ({error.strerror}): if this run is stopped, it loses its epochs"
            if note not in module.notes:
                module.notes.append(note)
                log.warning("%s: %s", self.path, note)
        self.written_at = time.monotonic()


class CheckpointFiles(TorchCheckpointIO):
    """How Lightning writes a checkpoint, whole or not at all, and reads it.

    Only tensors and plain Python values are made of it (`weights_only`): nothing in the file is run.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        stream = io.BytesIO()
        torch.save(checkpoint, stream)
        replace_file(Path(path), stream.getvalue())

    def load_checkpoint(self, path: str | Path, *arguments: Any, **options: Any) -> dict[str, Any]:
        content = Path(path).read_bytes()  # at once: of a file that is cut short PyTorch would give an OSError
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


class EpochNote(L.Callback):
    """Notes in the claim on the run in `folder` how far it is, at most once a second: a sweep reads it."""

    def __init__(self, folder: Path):
        self.folder, self.noted_at = folder, 0.0

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if time.monotonic() - self.noted_at >= 1:
            note_epochs(self.folder, trainer.current_epoch + 1, trainer.max_epochs or 0)
            self.noted_at = time.monotonic()


class Cost(L.Callback):
    """Measures what training takes.

    Args:
        data: that it trains on.
        device: that trains; nothing of this training is on it yet.

    Attributes:
        seconds: of this process from start to end of training, scoring included; 0 if there was no epoch left.
    """

    def __init__(self, data: PopulationData, device: torch.device):
        self.data, self.device = data, device
        self.seconds, self.tokens_before = 0.0, 0
        self.allocated_before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, PopulationTraining)
        self.began, self.tokens_before = time.monotonic(), self._tokens(module)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.seconds = time.monotonic() - self.began

    def _tokens(self, module: PopulationTraining) -> int:
        return sum(map(self.data.tokens_of, module.history[-1]["steps"])) if module.history else 0

    def trained(self, module: PopulationTraining) -> int:
        """The tokens that this process has trained on, all replicas together."""
        return self._tokens(module) - self.tokens_before if self.seconds else 0

    @property
    def peak_memory(self) -> int | None:
        """The most bytes that tensors of this training took on a GPU; None on a CPU."""
        if self.device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self.device) - self.allocated_before


class Progress(L.Callback):
    """One bar over all steps, with the time left and the scores that the replicas have reached.

    In a file or a pipe it is a line with these now and then. A line before them says which score is whose.

    Args:
        replicas: learning rate and seed of each.
        data: that they train on.
    """

    def __init__(self, replicas: Replicas, data: PopulationData):
        self.replicas, self.data = replicas, data
        self.lines = None if is_terminal() else Lines()

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if len(self.replicas) > 1:
            order = ", ".join(f"lr {lr:g} seed {seed}" for lr, seed in self.replicas)
            print(f"scores are shown in this order: {order}", file=sys.stderr, flush=True)
        self.before, self.began = self._steps(trainer, 0), time.monotonic()
        self.bar = tqdm(
            total=self.data.total_steps,
            initial=self.before,
            unit="step",
            smoothing=0,  # scoring makes pauses
            dynamic_ncols=True,
            disable=self.lines is not None,
        )

    def _steps(self, trainer: L.Trainer, of_epoch: int) -> int:
        steps = trainer.current_epoch * self.data.steps_per_epoch + min(of_epoch, self.data.steps_per_epoch)
        return min(steps, self.data.total_steps)

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(module, PopulationTraining)
        if module.finished:
            return
        done, total = self._steps(trainer, (batch_idx + 1) * self.data.steps_per_group), self.data.total_steps
        self.bar.set_postfix_str(_scores(module), refresh=False)
        self.bar.update(done - self.bar.n)
        if self.lines is not None:
            left = (time.monotonic() - self.began) / (done - self.before) * (total - done)
            self.lines.tell(lambda: f"step {done} of {total}, {duration(left)} left, {_scores(module)}")

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        assert isinstance(module, PopulationTraining)
        module.read_epoch()
        self.bar.set_postfix_str(_scores(module))
        self.bar.close()

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        if hasattr(self, "bar"):
            self.bar.close()


def _scores(module: PopulationTraining) -> str:
    """Those of the last epoch that has been read: the one before, until training ends."""
    score = module.score
    if not module.history:
        return f"no {score.label} yet"
    return f"val {score.label} {' '.join(f'{value:.3f}' for value in module.history[-1][f'val_{score.name}'])}"
