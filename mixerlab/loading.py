"""A trained model from the folder of its run."""

import functools
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from mixerlab.config.arguments import class_of
from mixerlab.config.building import Parts
from mixerlab.config.hybrid import mixers_of
from mixerlab.config.project import ConfigDir, use_folders
from mixerlab.config.settings import build_task
from mixerlab.config.values import mixer_version
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.records.best import Selection, best_trial, check_selection, chosen_by
from mixerlab.records.files import read_run, reading, snapshot, weights_file, weights_files
from mixerlab.records.identity import run_id
from mixerlab.records.schema import Record, changed_code, rows_digest
from mixerlab.tasks.base import Task
from mixerlab.tasks.data import digest_of_files, load_or_generate
from mixerlab.tasks.generated import Arrays, WrongRows
from mixerlab.training.metrics import CHOSEN_ON
from mixerlab.training.weights import put_in, unpack

log = logging.getLogger(__name__)

_warn_once = functools.cache(log.warning)  # a run has many replicas


@dataclass(frozen=True, eq=False)
class Loaded:
    """A replica of a finished run.

    Attributes:
        model: with the weights of the epoch that the selection takes; on the CPU, in float32 and evaluation mode. It
            maps token ids, int64 `[B, T]`, to logits `[B, T, V]`.
        task: generates and checks rows: `task.generate(8, numpy.random.default_rng(0), "test")`.
        config, row: of the run, resolved; of the replica, from the record.
    """

    model: LanguageModel | AutoEncoder
    task: Task
    config: dict[str, Any]
    row: dict[str, Any]


def load(
    run_folder: str | Path,
    replica: int | None = None,
    selection: Selection = "official",
    *,
    epochs: int | None = None,
    config_dir: ConfigDir = None,
) -> Loaded:
    """The trained model of a run, from `results/runs/<run_id>`.

    Args:
        run_folder: the run's. The classes that its config names are imported and called; the weights are only data.
        replica: its number in the record. None: the best by `selection`, as in the tables: of the learning rate with
            the best score averaged over its seeds, on test (`official`) or on val (`clean`), the best seed.
        selection: whose epoch: the best on test (`official`) or on val (`clean`), by `training.metrics.criterion`.
        epochs: the weights after so many epochs in place of that one, of those that `trainer.snapshots` kept.
        config_dir: your own folder of yamls, as with `--config-dir`, if the run has a mixer or task of yours.

    Warns if the code of the mixer has changed since.

    Raises:
        ValueError: no finished run; no weights, in which case the message has the command that keeps them; or those of
            another run or model.
    """
    check_selection(selection)
    folder = checked_folder(run_folder)
    if config_dir is not None:
        use_folders(config_dir)
    record, config = read_run(folder)
    if record is None or config is None or record.status != "finished":
        state = "not ended" if record is None else f"failed ({record.error})"
        raise ValueError(f"the run in {run_folder} has {state}: it has no weights")
    number = _best(record, selection) if replica is None else replica
    if number not in range(len(record.rows)):
        raise ValueError(f"replica={number!r}: the run has replicas 0 to {len(record.rows) - 1}")
    row = record.rows[number]
    if row[f"{selection}_epoch"] is None:
        raise ValueError(f"replica {number} diverged before the end of an epoch: it has no weights ({row['error']})")
    moment = selection if epochs is None else snapshot(epochs)
    path = weights_file(folder, number, moment)
    if not path.exists():
        raise ValueError(f"{run_folder} has no {moment} weights of replica {number}. {_again(folder, record, moment)}")
    task, model = _built(config)
    if changed_code(record, {"mixer": mixer_version(config)}):  # weights that fit say nothing of a `forward`
        said = f"{run_folder} was trained with other code of mixer={config['mixer']['name']} than today's"
        _warn_once("%s: the model may compute something else than its record scores", said)
    with reading(path):
        weights, about = unpack(path.read_bytes())
        for key, value in {"run_id": folder.name, "replica": number, "moment": moment}.items():
            if about.get(key) != value:
                raise ValueError(f"it is of {key} {about.get(key)!r}, not {value!r}")
        if about.get("rows_sha256") != rows_digest(record):
            raise ValueError("it is of another training of this run than the record")
        put_in(model, weights)
    return Loaded(model.eval(), task, config, row)


def checked_folder(run_folder: str | Path) -> Path:
    """The absolute path; ValueError if it is no run's folder."""
    folder = Path(run_folder).absolute()
    if folder.parent.name != "runs" or not folder.is_dir():
        raise ValueError(f"{run_folder} is no folder of a run: give results/runs/<run_id>")
    return folder


def check_files(task: Task, config: Mapping[str, Any]) -> None:
    """ValueError if the files of a run's task are no longer those of its config."""
    options = config["task"]
    if digest_of_files(task, options["data_dir"]) != options.get("data_sha256"):
        raise ValueError(f"task={options['name']}: its files are not those that {run_id(config)} was trained on")


def splits_of(task: Task, config: Mapping[str, Any]) -> dict[str, Arrays]:
    """The rows of a run, read from files (`check_files`) or generated; raises WrongRows, which names the task."""
    check_files(task, config)
    options = config["task"]
    try:
        return load_or_generate(task, options["data_dir"], options["allow_shared_rows"])
    except WrongRows as error:
        raise WrongRows(f"task={options['name']}: {error}") from error


def _best(record: Record, selection: Selection) -> int:
    seeds, _ = best_trial(record.rows, selection, record.score)  # at the best learning rate
    if not seeds:
        raise ValueError("no replica of the run has finished: mixerlab.load(..., replica=NUMBER) gives one")
    column, sign = chosen_by(selection, record.score), record.score.sign
    return max(seeds, key=lambda row: sign * row[column])["replica"]


def _built(config: Mapping[str, Any]) -> tuple[Task, LanguageModel | AutoEncoder]:
    """The task of a record's config, and its model, untrained."""
    cfg = OmegaConf.create(dict(config))
    for prefix, part in (mixers_of(cfg.mixer) | {"task": cfg.task}).items():
        try:
            class_of(part._target_)
        except ValueError as error:
            hint = "if it is your own, give --config-dir (in Python config_dir=), the folder of your yamls"
            raise ValueError(f"{prefix}={part.name}: {error}; {hint}") from error
    task = build_task(cfg.task)
    with torch.random.fork_rng(devices=()):  # loading draws nothing from the caller's random numbers
        return task, Parts.of(cfg).build_model(task)


def _again(folder: Path, record: Record, moment: str) -> str:
    """What to type to get the weights."""
    moments = {moment, *(path.name.split(".")[-2] for path in weights_files(folder))}  # what is kept, too
    if moment in CHOSEN_ON:
        keep = f"trainer.keep_weights={'both' if moments >= set(CHOSEN_ON) else moment}"
    else:
        epochs = sorted(int(kept.removeprefix("epoch-")) for kept in moments - set(CHOSEN_ON))
        keep = f"trainer.snapshots={epochs}".replace(" ", "")
    words = shlex.split(record.provenance["command"])
    words = [word for word in words if word.partition("=")[0] not in ("force", keep.partition("=")[0])]
    return f"To train it again and keep them: {shlex.join([*words, 'force=true', keep])}"
