"""A trained model from the folder of its run, or the command that trains it once more and keeps its weights."""

import importlib
import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from hydra.errors import HydraException
from omegaconf import OmegaConf

from mixerlab.config.building import build_model
from mixerlab.config.compose import compose
from mixerlab.config.hybrid import is_hybrid, mixers_of
from mixerlab.config.override_text import as_override
from mixerlab.config.project import use_folder
from mixerlab.config.settings import build_task, settings_of
from mixerlab.config.values import checked, mixer_version
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.records.atomic import read_bytes
from mixerlab.records.best import chosen_by
from mixerlab.records.files import read_run, weights_file, weights_files
from mixerlab.records.identity import DATA_DIGEST, flatten, is_volatile, run_id
from mixerlab.records.schema import Record, rows_digest
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect
from mixerlab.tasks.base import Task
from mixerlab.training.metrics import CHOSEN_ON
from mixerlab.training.weights import put_in, unpack

log = logging.getLogger(__name__)

_HEADER = 16 << 20  # bytes, above what the names of any model's tensors take


@dataclass(frozen=True, eq=False)
class Loaded:
    """A replica of a finished run.

    Attributes:
        model: with the weights of the epoch that the selection takes; on the CPU, in float32 and evaluation mode. It
            maps token ids, int64 `[B, T]`, to logits `[B, T, V]`.
        task: generates and checks rows: `task.generate(8, numpy.random.default_rng(0), "test")`.
        config: of the run, resolved.
        row: of the replica, from the record.
    """

    model: LanguageModel | AutoEncoder
    task: Task
    config: dict[str, Any]
    row: dict[str, Any]


def load(
    run_folder: str | Path,
    replica: int | None = None,
    selection: Literal["official", "clean"] = "official",
    *,
    config_dir: str | Path | None = None,
) -> Loaded:
    """The trained model of a run, from `results/runs/<run_id>`.

    Args:
        run_folder: the run's. The classes that its config names are imported and called; the weights are only data.
        replica: its number in the record. None: the best by `selection`, as in the tables: of the learning rate with
            the highest accuracy averaged over its seeds, on test (`official`) or on val (`clean`), the best seed.
        selection: whose epoch: of the lowest perplexity on test (`official`) or on val (`clean`).
        config_dir: your own folder of yamls, as with `--config-dir`, if the run has a mixer or task of yours.

    Warns if the code of the mixer has changed since.

    Raises:
        ValueError: no finished run is in the folder; the weights were not kept, in which case the message has the
            command that keeps them; they are damaged, another run's, or another model's.
    """
    if selection not in CHOSEN_ON:
        raise ValueError(f"selection={selection!r}: choose {' or '.join(CHOSEN_ON)}")
    folder = Path(run_folder).absolute()
    if folder.parent.name != "runs" or not folder.is_dir():
        raise ValueError(f"{run_folder} is no folder of a run: give results/runs/<run_id>")
    if config_dir is not None:
        use_folder(Path(config_dir))
    record, config = _finished(folder, run_folder)
    number = _best(folder.parents[1], record, config, selection) if replica is None else replica
    if number not in range(len(record.rows)):
        raise ValueError(f"replica={number!r}: the run has replicas 0 to {len(record.rows) - 1}")
    row = record.rows[number]
    if row[f"{selection}_epoch"] is None:
        raise ValueError(f"replica {number} diverged before the end of an epoch: it has no weights ({row['error']})")
    path = weights_file(folder, number, selection)
    if not path.exists():
        again = _again(folder, config, selection, config_dir)
        raise ValueError(f"{run_folder} has no {selection} weights of replica {number}. {again}")
    task, model = _built(config)
    _warn_of_other_code(run_folder, record, config)
    try:
        _read_weights(model, path, record, {"run_id": folder.name, "replica": number, "selection": selection})
    except ValueError as error:
        raise ValueError(
            f"{path} cannot be loaded: {error}. {_again(folder, config, selection, config_dir)}"
        ) from error
    return Loaded(model.eval(), task, config, row)


def _finished(folder: Path, given: str | Path) -> tuple[Record, dict[str, Any]]:
    """Record and config of a run; ValueError, which names the folder as it was given, unless it has finished."""
    record, config = read_run(folder.parents[1], folder.name)
    if record is None or config is None:
        raise ValueError(f"{given} has no record: its run has not ended")
    if record.status != "finished":
        raise ValueError(f"the run in {given} has failed ({record.error}): it has no weights")
    return record, config


def _read_weights(model: LanguageModel | AutoEncoder, path: Path, record: Record, expected: Mapping[str, Any]) -> None:
    """Puts a file's weights in `model`.

    Raises:
        ValueError: they are damaged, of another model, of another replica than `expected`, or not the record's.
    """
    state, about = unpack(read_bytes(path, _HEADER + _bytes_of(model)))
    for key, value in expected.items():
        if about.get(key) != value:
            raise ValueError(f"it is of {key} {about.get(key)!r}, not {value!r}")
    if about.get("rows_sha256") != rows_digest(record):
        raise ValueError("it is of another training of this run than the record")
    put_in(model, state)


def _warn_of_other_code(run_folder: str | Path, record: Record, config: Mapping[str, Any]) -> None:
    """Weights that fit say nothing of a `forward` that has changed."""
    now = mixer_version(config)
    if now != record.provenance.get("code_version", {}).get("mixer", now):
        log.warning(
            "%s was trained with other code of mixer=%s than today's: the model may compute something else than its"
            " record scores",
            run_folder,
            config["mixer"]["name"],
        )


def _best(results_dir: Path, record: Record, config: Mapping[str, Any], selection: Literal["official", "clean"]) -> int:
    """The number of the run's best replica."""
    (cell,) = best_per_cell(collect(results_dir, {record.run_id: config}), selection).to_dict("records")
    if not cell["replicas"]:
        raise ValueError(f"no replica of the run has finished ({cell['status']}): name one with replica=NUMBER")
    seeds = [record.rows[number] for _, number in cell["replicas"]]  # at the best learning rate
    return max(seeds, key=lambda row: row[chosen_by(selection, record.score.name)])["replica"]


def _built(config: Mapping[str, Any]) -> tuple[Task, LanguageModel | AutoEncoder]:
    """The task of a record's config, and its model, untrained."""
    if "${" in json.dumps(config):  # it was written resolved
        raise ValueError("the run's config.yaml has an interpolation, which no run writes: it is not loaded")
    cfg = OmegaConf.create(dict(config))
    for prefix, part in (mixers_of(cfg.mixer) | {"task": cfg.task}).items():
        try:
            importlib.import_module(part._target_.rpartition(".")[0])
        except ImportError as error:
            raise ValueError(
                f"{prefix}={part.name}: {part._target_} cannot be imported ({error}); if it is your own, give"
                " config_dir=, the folder of your yamls"
            ) from error
    # What was asked for by name stands beside it by value; the name may be a label that no yaml has.
    cfg.task.setting = next(iter(settings_of(cfg.task)))
    task = build_task(cfg.task)
    with torch.random.fork_rng(devices=()):  # loading draws nothing from the caller's random numbers
        return task, build_model(cfg, task)


def _bytes_of(model: torch.nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())


def _again(folder: Path, config: Mapping[str, Any], selection: str, config_dir: str | Path | None) -> str:
    """What to type to get the weights."""
    others = [path for path in weights_files(folder) if not path.name.endswith(f".{selection}.safetensors")]
    keep = ["force=true", f"trainer.keep_weights={'both' if others else selection}"]
    overrides = overrides_of(config, config_dir)
    if overrides is None:
        return f"To train it again and keep them, add to the run's command: {' '.join(keep)}"
    own = ["--config-dir", str(config_dir)] if config_dir is not None else []
    results_dir, here = folder.parents[1], Path.cwd()
    name = str(results_dir.relative_to(here) if results_dir.is_relative_to(here) else results_dir)
    where = [f"results_dir={as_override(name)}"] if name != "results" else []
    return f"To train it again and keep them: {shlex.join(['mixerlab', *own, *overrides, *where, *keep])}"


def overrides_of(config: Mapping[str, Any], config_dir: str | Path | None = None) -> list[str] | None:
    """Overrides with which today's yamls describe the run of a resolved `config`, in few words; None if they cannot.

    The yaml of a mixer has its name or, where that is another (`mixer.name=...`), the name of its file. A hybrid may
    have a yaml of its own.
    """
    mixer = config["mixer"]
    choices = [[f"mixer={mixer['name']}"]]
    if is_hybrid(mixer):
        choices.append(["mixer=hybrid", f"mixer.layers={as_override(mixer['layers'])}"])
    elif (file := mixer["_target_"].split(".")[-2]) != mixer["name"]:
        choices.append([f"mixer={file}"])
    for choice in choices:
        try:
            overrides = _from_yamls(config, [*choice, f"task={config['task']['name']}"], config_dir)
            _, described = checked(compose(*overrides, config_dir=config_dir))
        except (HydraException, ValueError):
            continue
        if run_id(described) == run_id(config):
            return overrides
    return None


def _from_yamls(config: Mapping[str, Any], overrides: list[str], config_dir: str | Path | None) -> list[str]:
    """`overrides`, and what must follow them to get from the yamls that they name to `config`."""
    default = compose(*overrides, config_dir=config_dir)
    overrides = overrides + [
        f"{group}={config[group]['name']}"
        for group in ("optimizer", "schedule")
        if config[group]["name"] != default[group].name
    ]
    setting = config["task"]["setting"]
    if setting != default.task.setting and setting in settings_of(default.task):
        overrides.append(f"task.setting={setting}")
    given = OmegaConf.to_container(compose(*overrides, config_dir=config_dir), resolve=True)
    assert isinstance(given, dict)
    values = flatten({str(key): value for key, value in given.items()})
    for key, value in flatten(config).items():
        if is_volatile(key) or key == DATA_DIGEST:
            continue
        if key not in values:
            overrides.append(f"+{key}={as_override(value)}")
        elif values[key] != value:
            overrides.append(f"{key}={as_override(value)}")
    return overrides
