"""One run: from its config to its record."""

import json
import logging
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from lightning_utilities.core.rank_zero import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from mixerlab.checks.buildable import check_buildable
from mixerlab.checks.outputs import OutputCheck
from mixerlab.config.building import Parts, grouping_of, loggers_of, optimizer_maker
from mixerlab.config.project import projects_in_use, use_noted_folders
from mixerlab.config.values import checked
from mixerlab.loading import load, splits_of
from mixerlab.loggers import Loggers, log_results, started
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.records import files
from mixerlab.records.atomic import remove_leftovers, replace_file
from mixerlab.records.claims import claim, holder
from mixerlab.records.errors import RefusedCode, RefusedMixer, users_code, with_place
from mixerlab.records.identity import hyperparameters, replicas_of, run_id
from mixerlab.records.provenance import COMMAND, git_state, provenance
from mixerlab.records.schema import Record, changed_code, failed_record, labels_of_replicas, rows_digest, state_of
from mixerlab.records.text import counted
from mixerlab.tasks.base import Task
from mixerlab.tasks.generated import Arrays
from mixerlab.training.metrics import CHOSEN_ON
from mixerlab.training.trainer_config import TrainerConfig, claim_gpu
from mixerlab.training.weights import pack, start_from

if TYPE_CHECKING:
    from mixerlab.training.fit import RunResult

log = logging.getLogger(__name__)

_warn_once = cache(log.warning)  # a sweep has many runs of the same mixer
PATIENCE = 1.0  # seconds that a run waits for another process to release it; a sweep's check takes an instant


class RunFailed(RuntimeError):
    """Training failed; the message says how, and the cause is what was raised.

    `traceback` is the file that has it; None if the message says all, as that of a refusal does.
    """

    def __init__(self, message: str, traceback: Path | None = None):
        super().__init__(message)
        self.traceback = traceback


@dataclass(frozen=True, eq=False)
class _Run:
    """A run that can be built, before it trains: `checked` and `check_buildable` made it of `cfg`.

    `folder` is where its record is, or will be.
    """

    cfg: DictConfig
    task: Task
    config: dict[str, Any]
    parts: Parts
    state_size: int
    folder: Path
    code: dict[str, str]

    @classmethod
    def from_config(cls, cfg: DictConfig) -> Self:
        """Raises ValueError for a value that no run can have."""
        task, config, code = checked(cfg)
        parts, state_size = check_buildable(cfg, task, config, code)
        return cls(cfg, task, config, parts, state_size, files.run_folder(cfg.results_dir, run_id(config)), code)

    def kept_record(self) -> Record | None:
        return files.kept_record(self.folder, self.cfg.force, self.code)

    def hyperparameters(self) -> dict[str, Any]:
        """What loggers are told of it: the keys that can change its result, its setting and its id."""
        own = {"task.setting": self.config["task"]["setting"], "run_id": self.folder.name}
        return hyperparameters(self.config) | own

    def build_model(self) -> LanguageModel | AutoEncoder:
        """One replica's, with its initial values."""
        model = self.parts.build_model(self.task)
        if self.start is not None:
            start_from(model, self.start)
        return model

    @cached_property
    def start(self) -> LanguageModel | AutoEncoder | None:
        """The model of the run that `model.start_from` names; raises ValueError if it has none."""
        folder = self.cfg.model.start_from
        return None if folder is None else load(folder).model


def run_state(cfg: DictConfig) -> tuple[Path, str]:
    """Where the run that `cfg` describes has its record, and what is left to do of it."""
    this = _Run.from_config(cfg)
    return this.folder, state_of(this.kept_record(), this.code)


def run(cfg: DictConfig) -> Record | None:
    """Trains what `cfg` describes, and returns its record; a finished run is only read.

    None if another process still trains this run after `PATIENCE`.

    Raises:
        ValueError: a value in the config that no run can have, in which case nothing is written; a results folder
            that cannot be used; or a logger that does not start, in which case a record that is there stays.
        RunFailed: training failed, or the task's rows are not as they must be, which the record says.
        OSError: the record cannot be written, for instance because the disk is full.
    """
    _set_up_lightning()
    this = _Run.from_config(cfg)
    splits = None
    if this.kept_record() is None:  # what refuses to train does so before anything is written
        if cfg.model.start_from is not None:
            try:
                this.build_model()
            except ValueError as error:
                raise ValueError(f"model.start_from={cfg.model.start_from}: {error}") from error
        if cfg.trainer.accelerator == "gpu" and not torch.cuda.is_available():
            raise ValueError("trainer.accelerator='gpu', but PyTorch finds no GPU here: choose auto or cpu")
        splits = splits_of(this.task, this.config) if "data_sha256" in this.config["task"] else None
    files.check_writable(cfg.results_dir)
    with claim(this.folder, PATIENCE) as ours:
        if not ours:
            log.info("another process is training this run (%s): %s", holder(this.folder), this.folder)
            return None
        remove_leftovers(this.folder)
        if (record := this.kept_record()) is not None:
            files.forget(this.folder)  # of a process that was killed after it had written its record
            log.info("%s is finished: skipped (force=true repeats it)", this.folder)
            if changed := changed_code(record, this.code):
                log.warning("Its code has changed since (%s): force=changed trains it again", ", ".join(changed))
            return record
        loggers = loggers_of(cfg, this.folder)
        with started(loggers, this.hyperparameters()):  # one that does not start leaves what there is
            return _train_and_record(this, splits, loggers)


def run_cell(cfg: DictConfig) -> str | None:
    """Trains a cell of a sweep, quietly, on a GPU of its own; its `run_id`, or None if another process trains it."""
    logging.disable(logging.INFO)  # the sweep shows its own progress
    claim_gpu()
    use_noted_folders(cfg)
    cfg.trainer.progress = False
    if cfg.trainer.keep_weights == "auto":
        cfg.trainer.keep_weights = "none"  # of many runs few are loaded
    record = run(cfg)
    return record.run_id if record else None


def _train_and_record(this: _Run, splits: Mapping[str, Arrays] | None, loggers: Loggers) -> Record:
    """Trains the run, writes all that it leaves, the record last, and returns that.

    Without `splits` the task generates them. RunFailed if training failed, which the record says, unless it is that of
    an earlier training, which stays.
    """
    folder = this.folder
    if not (repeats := files.has_results(folder)):
        (folder / files.RECORD_FILE).unlink(missing_ok=True)  # that of a failure
        files.write_config(folder, this.config)
    origin: dict[str, Any] = {"started_at": datetime.now(UTC), "code": this.code, "git": git_state(*projects_in_use())}
    origin["command"] = OmegaConf.get_cache(this.cfg).get(COMMAND)
    try:
        with users_code():
            if splits is None:
                splits = splits_of(this.task, this.config)
                origin["started_at"] = datetime.now(UTC)  # the wall time is that of training
            record, result = _measure(this, splits, origin, list(loggers.values()))
    except Exception as error:
        raise _failure(this, error, origin, repeats) from error
    # Whatever dies when, the run has the files of one record, or none and goes on from its checkpoint.
    (folder / files.RECORD_FILE).unlink(missing_ok=True)
    files.write_config(folder, this.config)
    _write_weights(folder, record, result.weights)
    files.write_metrics(folder, result.metrics)
    files.write_record(folder, record)
    (folder / files.ERROR_FILE).unlink(missing_ok=True)  # of an earlier try
    files.forget(folder)
    log_results(loggers, this.hyperparameters(), record)
    return record


def _failure(this: _Run, error: BaseException, origin: Mapping[str, Any], repeats: bool) -> RunFailed:
    """What to raise for an error of training, in the user's code or in ours; recorded, unless it `repeats` another."""
    reason = str(error) if isinstance(error, RefusedCode) else with_place(error)
    if isinstance(error, RefusedMixer):
        reason = f"mixer={this.cfg.mixer.name}: {reason}"
    if repeats:
        files.forget(this.folder)
        reason += f" (the record in {this.folder} is of the training before, and stays)"
    else:
        files.write_record(this.folder, failed_record(this.config, reason, provenance(**origin), this.task.score))
    file = this.folder / files.ERROR_FILE
    replace_file(file, "".join(traceback.format_exception(error)))
    return RunFailed(reason, None if isinstance(error, RefusedCode) else file)


def _write_weights(folder: Path, record: Record, weights: list[dict[str, dict[str, torch.Tensor]]]) -> None:
    """Writes the weights that go with `record`, and removes those of an attempt that left none."""
    for path in files.weights_files(folder):
        path.unlink()
    digest = rows_digest(record)
    sizes = []
    for row, by_moment in zip(record.rows, weights, strict=True):
        for moment, state in by_moment.items():
            about = {key: row[key] for key in ("run_id", "mixer", "task", "setting", "replica", "lr", "seed")}
            about |= {"moment": moment, "rows_sha256": digest}
            if moment in CHOSEN_ON:
                score = record.score.name
                about |= {"epoch": row[f"{moment}_epoch"], f"test_{score}": row[f"{moment}_{score}"]}
            content = pack(state, about)
            replace_file(files.weights_file(folder, row["replica"], moment), content)
            sizes.append(len(content))
    if sizes:
        log.info("weights: %s, %.1f MB", counted(len(sizes), "file"), sum(sizes) / 1e6)


def _measure(
    this: _Run, splits: Mapping[str, Arrays], origin: Mapping[str, Any], loggers: Sequence[Any]
) -> tuple[Record, "RunResult"]:
    """Trains; returns the record, whose provenance begins with `origin`, and what was measured."""
    from mixerlab.training.fit import Training  # brings Lightning and pandas, which a finished run does not need

    cfg, config, task = this.cfg, this.config, this.task
    notes = this.parts.initial_value_warnings(task.autoencode)
    for note in notes:
        _warn_once(note)
    model = this.build_model()
    counts = {
        "num_params": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "state_size": this.state_size,
        "chance": None if task.chance is None else float(task.chance),
    }
    how = TrainerConfig(**cfg.trainer)
    check = OutputCheck(
        vocab_size=task.vocab_size,
        lengths=tuple(dict.fromkeys((task.input_length, task.for_split("test").input_length))),
        is_causal=not task.autoencode,
        may_see_future=config["model"]["may_see_future"],
        key=json.dumps([config["mixer"], config["model"], this.code["mixer"]], sort_keys=True),
    )
    training = Training(
        build_model=this.build_model,
        splits=splits,
        make_optimizer=optimizer_maker(config["optimizer"], config["schedule"]),
        config=how,
        folder=this.folder,
        trained_rows=task.trained_rows,
        loggers=loggers,
        code=this.code,
        grouping=grouping_of(config["optimizer"]),
        score=task.score,
        score_from=task.score_from,
        check=check,
    )
    result = training.train(replicas_of(config))
    replicas = zip(labels_of_replicas(config), result.replicas, strict=True)
    rows = [labels | counts | measured for labels, measured in replicas]
    on_cpu = result.device.type == "cpu"
    made_by = provenance(
        **origin,
        device="cpu" if on_cpu else torch.cuda.get_device_name(result.device),
        threads=torch.get_num_threads() if on_cpu else None,
        instruction_set=torch.backends.cpu.get_cpu_capability() if on_cpu else None,
        precision=str(how.dtype).removeprefix("torch."),
        backends=_backends(this.parts.mixers_in(model), result.device, how.dtype),
        sees_future=check.sees_future,
        notes=[*notes, *result.notes, *check.notes],
        resumed_after_s=result.resumed_after_s,
        training_s=result.resumed_after_s + result.seconds,
        tokens_per_s=result.tokens / result.seconds if result.tokens else None,
        peak_memory_mb=result.peak_memory and result.peak_memory / 1e6,
    )
    return Record(run_id=this.folder.name, status="finished", rows=rows, score=task.score, provenance=made_by), result


def _set_up_lightning() -> None:
    """This process trains alone, whatever a cluster's variables say: Lightning's loggers write nothing in rank 1.

    No more of Lightning's advice, of which devices it has found, of SIGTERM, which the command tells, or of its own use
    of PyTorch; its warnings stay.
    """
    rank_zero_only.rank = 0  # type: ignore[attr-defined]
    # By their own names: Lightning sets the level of the logger above them when it is imported.
    for name in ("utilities.rank_zero", "trainer.connectors.signal_connector"):
        logging.getLogger(f"lightning.pytorch.{name}").setLevel(logging.WARNING)
    for message in (r"`isinstance\(treespec, LeafSpec\)` is deprecated", "The `srun` command is available"):
        warnings.filterwarnings("ignore", message)


def _backends(mixers: Iterable[tuple[str, SequenceMixer]], device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """What computes each mixer, by name; layers of one name may have several backends."""
    backends: dict[str, dict[str, None]] = {}
    for name, mixer in mixers:
        backends.setdefault(name, {})[mixer.resolved_backend(device, dtype)] = None
    return {name: ", ".join(names) for name, names in backends.items()}
