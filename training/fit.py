"""What a run does, in order: `Training.train` tells it.

Lightning trains the replicas together. A run that was interrupted goes on, and replicas that do not fit in memory
together train in two halves.
"""

import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd
import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from mixerlab.records.errors import Terminated, reason, users_code
from mixerlab.records.schema import ACCURACY, Score
from mixerlab.records.text import counted
from mixerlab.training.callbacks import (
    CheckpointFiles,
    Cost,
    EpochNote,
    Progress,
    Replicas,
    ResumePoint,
    checkpoint_name,
)
from mixerlab.training.compiled import compile_mixers, without_kernels
from mixerlab.training.datamodule import PopulationData
from mixerlab.training.execution import choose_execution
from mixerlab.training.layout import PAPER, Grouping
from mixerlab.training.lit_module import PopulationTraining
from mixerlab.training.metrics import ScoreFrom, metrics_rows, summarise
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import Population
from mixerlab.training.trainer_config import TrainerConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RunResult:
    """What a run measured: `replicas` as `training.metrics.summarise` gives them, and the metrics table.

    `weights` has for each replica the states of its model that are kept, name to tensor, by selection or snapshot.
    `resumed_after_s` is the training that other processes did before they were stopped, in seconds. In `seconds` this
    process has trained on `tokens`, all replicas together, and scored each epoch. `peak_memory` is the most that its
    tensors took on a GPU, in bytes; None on a CPU.
    """

    replicas: list[dict]
    metrics: pd.DataFrame
    weights: list[dict[str, dict[str, torch.Tensor]]]
    notes: list[str]
    device: torch.device
    resumed_after_s: float
    seconds: float
    tokens: int
    peak_memory: int | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """What a run trains by, whichever of its replicas train together.

    Attributes:
        splits: as of `PopulationData`.
        make_optimizer: gets `population`, whose parameters are laid out by `grouping`, `lr` (the peak of each replica)
            and `total_steps`.
        folder: of the run; checkpoints are kept there, for the same `code` only.
        trained_rows: how many rows to train on, in place of the config's epochs.
        score, score_from: what it is judged by, and how that comes from `training.metrics.means_of`, if it is none.
        check: gets a population that is about to train, on its device and before any mixer is compiled, whether it
            trains under bf16 autocast, and the rows of one replica at once. What it raises ends the run.
    """

    build_model: Callable[[], nn.Module]
    splits: Mapping[str, tuple[np.ndarray, np.ndarray]]
    make_optimizer: Callable[..., PopulationOptimizer]
    config: TrainerConfig
    folder: Path
    trained_rows: int | None = None
    loggers: Sequence[L.pytorch.loggers.Logger] = ()
    code: Mapping[str, str] | None = None
    grouping: Grouping = PAPER
    score: Score = ACCURACY
    score_from: ScoreFrom | None = None
    check: Callable[[Population, bool, int], None] | None = None

    def train(self, replicas: Replicas, *, is_half: bool = False) -> RunResult:
        """Trains one replica for each (learning rate, seed) of `replicas`, together, if they fit in memory.

        An interrupted call continues from its last checkpoint. Checkpoints stay when training ends: the caller removes
        them (`forget`) once the results are safe. Replicas that do not fit in the GPU's memory train in two halves, one
        after the other. `is_half`: the run has other replicas.

        Raises:
            ValueError: a model whose replicas cannot train as wanted (`Population`, `choose_execution`); a split
                without a target.
            Terminated: SIGTERM came.
            Exception: what the model raises.
        """
        parts = [replicas]
        try:
            return self._train_together(replicas, is_half)
        except _Unrestorable as error:
            note = str(error)
            log.warning("%s: %s", self.folder, note)
        except torch.OutOfMemoryError:
            if len(replicas) == 1:
                raise
            note = f"out of memory with {len(replicas)} replicas: trained in two halves"
            middle = (len(replicas) + 1) // 2
            parts, is_half = [replicas[:middle], replicas[middle:]], True
            log.warning("%s: %s", self.folder, note)
        # Outside the handlers: the traceback no longer holds the tensors of the failed attempt. The cycle of trainer
        # and module still does.
        gc.collect()
        torch.cuda.empty_cache()
        return _joined(note, [self.train(part, is_half=is_half) for part in parts])

    def _train_together(self, replicas: Replicas, is_half: bool) -> RunResult:
        """Trains `replicas` as one population; raises `_Unrestorable` for a checkpoint that is of no use."""
        config = self.config
        rates, seeds = zip(*replicas, strict=True)

        # Models and data.
        population = Population(self.build_model, seeds, self.grouping)
        log.info("parameters of one replica, by rule:\n%s", population.layout.describe())
        length = {"trained_rows": self.trained_rows, "eval_every": config.eval_every}
        data = PopulationData(self.splits, seeds, config.batch_size, config.epochs, **length)
        if late := [done for done in config.snapshots if done > data.epochs]:
            told = f"trainer.snapshots has {late}, and this training has {counted(data.epochs, 'epoch')}"
            raise ValueError(f"{told}: trainer.eval_every=STEPS makes more")
        rows_at_once = -(-data.batch_size // config.accumulate)

        # What an interrupted training has left, and what this one will leave.
        checkpoint = self.folder / checkpoint_name(replicas, self.code, config)
        resumes = checkpoint.exists()
        earlier_notes = [] if resumes else self._notes_of_others(checkpoint)
        # A half that is done must not train again because the other one is interrupted.
        resume_point = ResumePoint(checkpoint, config.checkpoint_every, is_half)
        trainer = self._trainer(data.epochs, resume_point, Progress(replicas, data))
        device = trainer.strategy.root_device
        trainer.callbacks.append(cost := Cost(data, device))  # type: ignore[attr-defined]

        # How the replicas compute: side by side, if the model can.
        tokens, scored = data.first_rows(rows_at_once, device)
        decision = choose_execution(population.to(device), config.replicas, tokens, scored, bf16=config.bf16)
        log.info(decision.why or "replicas compute side by side, under vmap")
        if data.epochs == 1:
            log.info("scores and a checkpoint come at the end only: trainer.eval_every=STEPS makes more")
        if decision.unused is not None:
            log.warning("%s: %s", self.folder, decision.unused)

        module = PopulationTraining(
            population,
            lambda: self.make_optimizer(
                population=population,
                lr=[rates[number] for number in population.replicas],
                total_steps=data.total_steps,
            ),
            config,
            captures=config.cuda_graph and device.type == "cuda",
            score=self.score,
            score_from=self.score_from,
            series=[f"lr-{lr:g}_seed-{seed}" for lr, seed in replicas],  # of characters that every logger takes
        )
        module.notes += [note for note in (*earlier_notes, decision.why, decision.unused) if note is not None]
        if self.check is not None:
            self.check(population, config.bf16, rows_at_once)
        _compile(population, config, module.notes)

        try:
            _fit(trainer, module, data, checkpoint if resumes else None)
        except Exception as error:
            # An error before the first step is the checkpoint's, unless it is of a disk or a GPU: load_state_dict wraps
            # errors of CUDA in one of its own.
            if not resumes or resume_point.has_started or isinstance(error, OSError) or "CUDA" in str(error):
                raise
            checkpoint.unlink()
            message = f"{checkpoint.name} cannot be restored ({reason(error)}): trained from the start"
            raise _Unrestorable(message) from error

        tokens_of = None if self.trained_rows is None else data.tokens_of
        results = [summarise(module.history, replica, self.score) for replica in range(len(replicas))]
        return RunResult(
            replicas=results,
            metrics=pd.DataFrame(metrics_rows(module.history, replicas, self.score, tokens_of)),
            weights=[module.weights(replica, its_results) for replica, its_results in enumerate(results)],
            notes=module.notes,
            device=device,
            resumed_after_s=resume_point.resumed_after_s,
            seconds=cost.seconds,
            tokens=cost.trained(module),
            peak_memory=cost.peak_memory,
        )

    def _notes_of_others(self, checkpoint: Path) -> list[str]:
        """A line, which is logged, for each checkpoint of the same replicas that this training does not go on from."""
        of_these_replicas, _, _ = checkpoint.name.rpartition("-")
        differs = "is of other code, another device, precision, order of the rates or choice of weights to keep"
        others = self.folder.glob(f"{of_these_replicas}-*.ckpt")
        notes = [f"{other.name} {differs}: training starts over" for other in others]
        for note in notes:
            log.warning("%s: %s", self.folder, note)
        return notes

    def _trainer(self, epochs: int, resume_point: ResumePoint, progress: Progress) -> L.Trainer:
        config = self.config
        return _PlainTrainer(
            accelerator=config.device_type,
            devices=1,
            max_epochs=epochs,
            callbacks=[resume_point, EpochNote(self.folder), *([progress] if config.progress else [])],
            # The plain environment, whatever a cluster's variables say: under Slurm, Lightning would requeue the job at
            # SIGUSR1, and write and prefer a checkpoint of its own.
            plugins=[CheckpointFiles(), LightningEnvironment()],
            logger=list(self.loggers),
            log_every_n_steps=1,  # its epochs have one step
            default_root_dir=os.devnull,  # no folder: it finds nothing there and leaves nothing
            enable_checkpointing=False,  # ResumePoint keeps the one that is needed
            enable_progress_bar=False,  # Lightning's starts anew every epoch; Progress spans the run
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )


class _Unrestorable(Exception):
    """A checkpoint could not be restored, and is removed; the message is a note for the record."""


class _PlainTrainer(L.Trainer):
    """By another name: a variable such as PL_TRAINER_MAX_STEPS would change an argument of `Trainer`."""


def _compile(population: Population, config: TrainerConfig, notes: list[str]) -> None:
    """Compiles mixers as `config.compile` says, and adds to `notes`, also later, what came of it and what is slow.

    It gets the notes and not the module: that and its mixers would be a cycle, freed late.
    """

    def report(line: str) -> None:
        if line not in notes:
            notes.append(line)
            log.info(line)

    for line in without_kernels(population, config.dtype):
        report(line)
    compile_mixers(population, config.compile, dtype=config.dtype, report=report)


def _fit(trainer: L.Trainer, module: PopulationTraining, data: PopulationData, checkpoint: Path | None) -> None:
    """Trains, from the checkpoint if there is one. An interruption raises what it is, however Lightning wraps it."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    with users_code():
        try:
            trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        except SIGTERMException:
            raise Terminated(128 + signal.SIGTERM) from None
        finally:
            if signal.getsignal(signal.SIGINT) is not on_interrupt:  # Lightning turns off the next Ctrl-C
                signal.signal(signal.SIGINT, on_interrupt)


def _joined(note: str, parts: Sequence[RunResult]) -> RunResult:
    """The result of a run whose replicas trained in these parts; `note` says why."""
    start = 0
    for part in parts:
        part.metrics["replica"] += start
        start += len(part.replicas)
    return replace(
        parts[0],
        replicas=[results for part in parts for results in part.replicas],
        metrics=pd.concat([part.metrics for part in parts], ignore_index=True),
        weights=[weights for part in parts for weights in part.weights],
        notes=[note, *dict.fromkeys(note for part in parts for note in part.notes)],
        resumed_after_s=sum(part.resumed_after_s for part in parts),
        seconds=sum(part.seconds for part in parts),
        tokens=sum(part.tokens for part in parts),
        peak_memory=max((part.peak_memory for part in parts if part.peak_memory), default=None),
    )
