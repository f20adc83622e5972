"""Trains the replicas of one run with Lightning: resumes, halves what does not fit in memory, returns results."""

import gc
import hashlib
import logging
import signal
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import lightning as L
import numpy as np
import pandas as pd
import torch
from lightning.pytorch.trainer.connectors import checkpoint_connector
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn

from mixerlab.records.interruption import Terminated, interruptions_unwrapped
from mixerlab.training.callbacks import CheckpointFiles, EpochProgress, ResumePoint
from mixerlab.training.capture import GraphCache
from mixerlab.training.checkpoints import DamagedCheckpoint, read_checkpoint, set_aside
from mixerlab.training.compiled import compile_mixers, without_kernels
from mixerlab.training.datamodule import PopulationData
from mixerlab.training.execution import choose_execution
from mixerlab.training.lit_module import PopulationTraining, selections_in, series_name
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import PAPER, Grouping, Population
from mixerlab.training.results import metrics_rows, summarise
from mixerlab.training.schedules import Schedule
from mixerlab.training.trainer_config import TrainerConfig, check_accelerator

log = logging.getLogger(__name__)


class MakeOptimizer(Protocol):
    """Builds the optimizer of a population: `lr` has one peak learning rate for each replica."""

    def __call__(
        self, *, population: Population, lr: Sequence[float], schedule: Schedule, total_steps: int
    ) -> PopulationOptimizer: ...


_graphs = GraphCache()  # of this process: what one run captured serves the next ones


@dataclass
class RunResult:
    """What a run measured: `replicas` as `training.results.summarise` gives them, and the metrics table.

    `weights` has for each replica the state of its model, name to tensor, by the selections that are kept.
    `resumed_after_s` is the training that other processes did before they were stopped, in seconds.
    """

    replicas: list[dict] = field(default_factory=list)
    metrics: pd.DataFrame = field(default_factory=pd.DataFrame)
    weights: list[dict[str, dict[str, torch.Tensor]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    device: str = ""
    torch_device: torch.device | None = None
    dtype: torch.dtype | None = None
    resumed_after_s: float = 0.0


def train(
    replicas: Sequence[tuple[float, int]],
    *,
    build_model: Callable[[], nn.Module],
    splits: Mapping[str, tuple[np.ndarray, np.ndarray]],
    make_optimizer: MakeOptimizer,
    schedule: Schedule,
    config: TrainerConfig,
    folder: Path,
    loggers: Sequence[L.pytorch.loggers.Logger] = (),
    graph_key: Hashable = None,
    code: Mapping[str, str] | None = None,
    grouping: Grouping = PAPER,
    check: Callable[[Population, bool, int], None] | None = None,
) -> RunResult:
    """Trains one replica for each (learning rate, seed) of `replicas`, together.

    An interrupted call continues from its last checkpoint in `folder`, where its `code` was the same. Checkpoints stay
    when training ends: the caller removes them (`forget_checkpoints`) once the results are safe. A population that does
    not fit in the GPU's memory is halved, and the halves train one after the other. `make_optimizer` gets a
    population whose parameters are laid out by `grouping`. `check` gets a population that is about to train, on its
    device and before any mixer is compiled, whether it trains under bf16 autocast, and the rows in a step of one
    replica; what it raises ends the run.

    Calls of the same `graph_key` in one process share captured graphs where their tensors have the same shapes, and how
    their replicas compute: it must say all of `build_model` and `make_optimizer` but what they keep in tensors. With
    None nothing is shared.

    Raises:
        ValueError: a GPU is asked for, and there is none; a model whose replicas cannot train as wanted (`Population`,
            `choose_execution`); a split without a target.
        Exception: what the model raises.
    """
    check_accelerator(config.accelerator)
    training = _Training(
        build_model=build_model,
        splits=splits,
        make_optimizer=make_optimizer,
        schedule=schedule,
        config=config,
        folder=folder,
        loggers=loggers,
        code=code,
        grouping=grouping,
        check=check,
    )
    return _train_in_memory(training, replicas, graph_key)


class _CannotRestore(Exception):
    """The checkpoint at `path` is of no use."""

    def __init__(self, path: Path, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, " ".join(reason.split())[:200]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Training:
    """What a run trains by, whichever of its replicas train together."""

    build_model: Callable[[], nn.Module]
    splits: Mapping[str, tuple[np.ndarray, np.ndarray]]
    make_optimizer: MakeOptimizer
    schedule: Schedule
    config: TrainerConfig
    folder: Path
    loggers: Sequence[L.pytorch.loggers.Logger]
    code: Mapping[str, str] | None
    grouping: Grouping
    check: Callable[[Population, bool, int], None] | None
    name: str = field(default_factory=lambda: uuid4().hex)  # of this call of `train`

    def together(self, replicas: Sequence[tuple[float, int]], graph_key: Hashable, *, is_half: bool) -> RunResult:
        """Trains `replicas` as one population."""
        try:
            return self._attempt(replicas, graph_key, is_half, notes=[])
        except _CannotRestore as error:
            # The name says for which replicas and which code it was: whatever is wrong is wrong with the file.
            note = f"{error.path.name} could not be restored ({error.reason}): trained from the start"
            aside = set_aside(error.path)
            log.warning(
                "%s cannot be restored (%s) and is now %s: training starts anew", error.path, error.reason, aside.name
            )
        return self._attempt(replicas, graph_key, is_half, notes=[note])

    def _attempt(
        self,
        replicas: Sequence[tuple[float, int]],
        graph_key: Hashable,
        is_half: bool,
        notes: Sequence[str],
    ) -> RunResult:
        config = self.config
        rates, seeds = zip(*replicas, strict=True)
        population = Population(self.build_model, seeds, self.grouping)
        log.info("parameters of one replica, by rule:\n%s", population.layout.describe())
        data = PopulationData(self.splits, seeds, config.batch_size)
        total_steps = config.epochs * data.steps_per_epoch
        accelerator, bf16 = _accelerator_and_bf16(config)
        earlier = self._earlier(replicas, accelerator, bf16)
        # A half that is done must not train again because the other one is interrupted.
        resume_point = ResumePoint(earlier.path, config.checkpoint_every, is_half, self.name)
        trainer = self._trainer(accelerator, resume_point, EpochProgress(replicas, is_half))
        device = trainer.strategy.root_device
        tokens, scored = data.first_batch(device)
        decision = choose_execution(population.to(device), config.replicas, tokens, scored, bf16=bf16, key=graph_key)
        log.info(decision.why or "replicas compute side by side, under vmap")
        if decision.warning:
            log.warning(decision.warning)
        module = PopulationTraining(
            population,
            lambda population: self.make_optimizer(
                population=population,
                lr=[rates[number] for number in population.replicas],
                schedule=self.schedule,
                total_steps=total_steps,
            ),
            bf16=bf16,
            cache=_graphs if config.cuda_graph and device.type == "cuda" else None,
            graph_key=graph_key,
            stop_when_perfect=config.stop_when_perfect,
            stop_above=config.stop_above,
            series=[series_name(lr, seed) for lr, seed in replicas],
            selections_kept=earlier.selections_kept,
        )
        module.notes += [*notes, *earlier.notes, *filter(None, (decision.why, decision.warning))]
        if self.check is not None:
            self.check(population, bf16, data.batch_size)
        dtype = torch.bfloat16 if bf16 else torch.float32
        _compile(population, config, dtype, module.notes)
        _fit(trainer, module, data, earlier)
        results = [summarise(module.history, replica) for replica in range(len(replicas))]
        return RunResult(
            replicas=results,
            weights=[module.weights(replica, of_replica) for replica, of_replica in enumerate(results)],
            metrics=pd.DataFrame(metrics_rows(module.history, replicas)),
            notes=module.notes,
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            torch_device=device,
            dtype=dtype,
            resumed_after_s=resume_point.resumed_after_s,
        )

    def _earlier(self, replicas: Sequence[tuple[float, int]], accelerator: str, bf16: bool) -> "_Earlier":
        """What an interrupted training of these replicas has left.

        Raises:
            _CannotRestore: a damaged checkpoint.
        """
        # Device and precision are in the name: a run killed on a GPU must not go on on a CPU, whose generator draws
        # another order of rows.
        prefix = f"resume-{_label(replicas, self.code)}"
        path = self.folder / f"{prefix}-{accelerator}-{'bf16' if bf16 else 'float32'}.ckpt"
        earlier = _Earlier(path, path.is_symlink() or path.exists(), self.config.selections_kept)
        if not earlier.exists:
            reasons: dict[str, str] = {}
            for other in sorted(self.folder.glob(f"resume-{_set_label(replicas)}*.ckpt")):
                if other.name.startswith(f"{prefix}-"):
                    why = "on another device or precision"
                elif other.name.startswith(f"resume-{_replicas_label(replicas)}-"):
                    why = "by other mixer, task or training code"
                else:
                    why = "for these rates and seeds in another order"
                reasons[why] = other.name
            for why, name in reasons.items():
                earlier.notes.append(f"{name} was written {why}: training starts over")
                log.warning(earlier.notes[-1])
            return earlier
        try:
            checkpoint = read_checkpoint(path)
        except DamagedCheckpoint as error:
            raise _CannotRestore(path, str(error)) from error
        if self.config.keep_weights == "auto" and not selections_in(checkpoint):
            # It was killed in a sweep. Whoever asks for weights by name gets them from a training of all epochs.
            earlier.selections_kept = ()
            earlier.notes.append(f"{path.name} has no weights of the epochs so far: none are kept")
            log.info(earlier.notes[-1])
        return earlier

    def _trainer(self, accelerator: str, resume_point: ResumePoint, progress: EpochProgress) -> L.Trainer:
        config = self.config
        return L.Trainer(
            accelerator=accelerator,
            devices=1,
            max_epochs=config.epochs,
            callbacks=[resume_point, *([progress] if config.progress else [])],
            plugins=[CheckpointFiles()],
            logger=list(self.loggers),
            default_root_dir=self.folder,
            enable_checkpointing=False,  # ResumePoint keeps the one that is needed
            enable_progress_bar=False,  # Lightning's starts anew every epoch; EpochProgress spans the run
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )


@dataclass
class _Earlier:
    """The checkpoint of an interrupted training at `path`, if it `exists`, and what it means for the one that follows.

    `selections_kept` are those of which weights are kept; `notes` go into the record.
    """

    path: Path
    exists: bool
    selections_kept: tuple[str, ...]
    notes: list[str] = field(default_factory=list)


def _accelerator_and_bf16(config: TrainerConfig) -> tuple[str, bool]:
    """`cpu` or `gpu` (Lightning would pick any accelerator under "auto"), and whether training is under autocast."""
    accelerator = config.accelerator
    if accelerator == "auto":
        accelerator = "gpu" if torch.cuda.is_available() else "cpu"
    return accelerator, config.precision == "bf16" or (config.precision == "auto" and accelerator == "gpu")


def _compile(population: Population, config: TrainerConfig, dtype: torch.dtype, notes: list[str]) -> None:
    """Compiles mixers as `config.compile` says, and adds to `notes`, also later, what came of it and what is slow.

    It gets the notes and not the module, which a compiled mixer in a cached graph would keep alive.
    """

    def report(line: str) -> None:
        if line not in notes:
            notes.append(line)
            log.info(line)

    for line in without_kernels(population, dtype):
        report(line)
    compile_mixers(population, config.compile, dtype=dtype, report=report)


def _fit(trainer: L.Trainer, module: PopulationTraining, data: PopulationData, earlier: _Earlier) -> None:
    """Trains, from the earlier checkpoint if there is one.

    Raises:
        Terminated: SIGTERM came. Other interruptions raise what they are, however Lightning wraps them.
        _CannotRestore: Lightning could not restore the checkpoint.
    """
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        with interruptions_unwrapped():
            trainer.fit(module, datamodule=data, ckpt_path=earlier.path if earlier.exists else None)
    except SIGTERMException:
        raise Terminated from None
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if earlier.exists and _is_of_checkpoint(error):
            raise _CannotRestore(earlier.path, f"{type(error).__name__}: {error}") from error
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is not on_interrupt:  # Lightning turns off the next Ctrl-C
            signal.signal(signal.SIGINT, on_interrupt)


def _is_of_checkpoint(error: Exception) -> bool:
    """Whether Lightning raised `error` because of what a checkpoint holds, while it restored state from it.

    A logger that cannot write fails between `trainer.fit` and the first step too; a disk or a GPU that fails while the
    state is restored says nothing about the file.
    """
    if isinstance(error, OSError) or "CUDA" in str(error):  # load_state_dict wraps errors of CUDA in one of its own
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__") == checkpoint_connector.__name__ for frame in frames)


def _train_in_memory(
    training: _Training,
    replicas: Sequence[tuple[float, int]],
    graph_key: Hashable,
    *,
    is_half: bool = False,
) -> RunResult:
    """`training.together(...)`; what does not fit in memory shares no graphs, and then is halved."""
    try:
        return training.together(replicas, graph_key, is_half=is_half)
    except torch.OutOfMemoryError:
        graphs_had_memory = _graphs.clear()
        if len(replicas) == 1 and not graphs_had_memory:
            raise
    # Outside the handler: the traceback no longer holds the tensors of the failed attempt. The cycle of trainer and
    # module still does.
    gc.collect()
    torch.cuda.empty_cache()
    if graphs_had_memory:
        note = "out of memory while graphs were shared with other runs: trained with its own"
        log.warning(note)
        result = _train_in_memory(training, replicas, None, is_half=is_half)
        result.notes.insert(0, note)
        return result
    note = f"out of memory with {len(replicas)} replicas: trained in two halves"
    log.warning(note)
    middle = (len(replicas) + 1) // 2
    result = RunResult(notes=[note])
    for start, half in ((0, replicas[:middle]), (middle, replicas[middle:])):
        part = _train_in_memory(training, half, None, is_half=True)
        part.metrics["replica"] += start
        result.replicas += part.replicas
        result.metrics = pd.concat([result.metrics, part.metrics], ignore_index=True)
        result.weights += part.weights
        result.notes += [note for note in part.notes if note not in result.notes]
        result.device, result.torch_device, result.dtype = part.device, part.torch_device, part.dtype
        result.resumed_after_s += part.resumed_after_s
    return result


def _label(replicas: Sequence[tuple[float, int]], code: Mapping[str, str] | None) -> str:
    """A name for these replicas in this order, trained by this code: a checkpoint's rows are theirs alone."""
    return f"{_replicas_label(replicas)}-{_short_hash(code)}"


def _replicas_label(replicas: Sequence[tuple[float, int]]) -> str:
    return f"{_set_label(replicas)}{_short_hash(list(replicas))}"


def _set_label(replicas: Sequence[tuple[float, int]]) -> str:
    """A name for these replicas in any order."""
    return _short_hash(sorted(replicas))


def _short_hash(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]
