"""The values of a run's config, checked key by key before anything is built or written."""

import inspect
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, cast

import torch
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from mixerlab.config.arguments import check_arguments, class_of, defaults_of, subclass_of
from mixerlab.config.hints import one_line_refusals
from mixerlab.config.hybrid import check_keys, is_hybrid, mixers_of
from mixerlab.config.settings import build_task, setting_name
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.block import GRANULE
from mixerlab.records.code_version import code_version
from mixerlab.records.files import Unreadable, read_record
from mixerlab.records.identity import DATA_PATHS, replicas_of
from mixerlab.records.named import check_sweep_name
from mixerlab.records.schema import rows_digest
from mixerlab.tasks.base import Task
from mixerlab.tasks.data import digest_of_files
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.torch_optimizer import PARTS, TorchOptimizer
from mixerlab.training.trainer_config import TrainerConfig, steps_of

# Groups whose keys are the arguments of the class that their `_target_` names: its base, and what a run supplies.
_COMPONENTS: dict[str, tuple[type, tuple[str, ...]]] = {
    "mixer": (SequenceMixer, ("d_model",)),
    "optimizer": (PopulationOptimizer, ("population", "lr", "schedule", "total_steps")),
    "schedule": (object, ()),
}
MOST_STEPS = 2**24  # the optimizer counts them in float32


@dataclass(frozen=True)
class RunConfig:
    """The keys of a config, of which those that are no groups are checked here, but for seeds (`replicas_of`)."""

    mixer: dict
    task: dict
    optimizer: dict
    schedule: dict
    trainer: dict
    model: dict
    logger: dict
    seed: Any
    results_dir: str
    force: bool | Literal["changed"]
    dry_run: bool
    sweep: str | None

    def __post_init__(self):
        if not self.results_dir.strip():
            raise ValueError(f"results_dir={self.results_dir!r} must be the name of a folder")
        if self.sweep is not None:
            check_sweep_name(self.sweep)


@dataclass(frozen=True)
class ModelConfig:
    """The keys of the group `model`, as conf/config.yaml explains them."""

    d_model: int
    n_layers: int
    linear_std: float | Literal["fan_in"] | None
    autoencoder_redraw_all: bool
    may_see_future: bool
    tie_embeddings: bool = False
    logit_softcap: float | None = None
    shared_mixer: bool = False
    d_ff: int | None = None
    match_params: str | None = None
    start_from: str | None = None

    def __post_init__(self):
        for key in ("d_model", "n_layers"):
            if getattr(self, key) < 1:
                raise ValueError(f"model.{key}={getattr(self, key)} must be at least 1")
        if self.d_ff is not None and (self.d_ff < GRANULE or self.d_ff % GRANULE):
            raise ValueError(f"model.d_ff={self.d_ff} must be a multiple of {GRANULE}, or null")
        std, cap = self.linear_std, self.logit_softcap
        if std not in (None, "fan_in") and not 0 < float(std) < math.inf:
            raise ValueError(f"model.linear_std={std} must be finite and above 0, fan_in, or null (PyTorch's)")
        if cap is not None and not 0 < cap < math.inf:
            raise ValueError(f"model.logit_softcap={cap} must be finite and above 0, or null for none")


def checked(cfg: DictConfig) -> tuple[Task, dict[str, Any], dict[str, str]]:
    """What a composed config asks for: the task, the config, and the `code_versions` of that.

    The config is resolved, with its setting's name, constructors' defaults and its dataset's digest and absolute path.
    With the versions of the code is that of the run that it starts from, as `start_from`.
    """
    with one_line_refusals():  # a value that is ???, or ${nothing}
        check_arguments("", RunConfig, cfg, yaml="conf/config.yaml")
        RunConfig(**{str(key): value for key, value in cfg.items()})
        task = build_task(cfg.task)  # first: its message for a wrong setting is the clear one
        config = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    # Test rows as long as the others are null: the same run.
    config["task"] |= {"setting": setting_name(cfg.task), "test_seq_len": task.test_seq_len}
    config["task"] |= defaults_of(type(task), config["task"])
    _check(config, task)
    code = code_versions(config)
    if (start := config["model"]["start_from"]) is not None:
        config["model"]["start_from"] = Path(start).name  # wherever its folder lies, the run is the same
        with suppress(Unreadable):
            if (made_by := read_record(start)) is not None:  # a finished run may outlive it
                code["start_from"] = rows_digest(made_by)[:12]
    if (digest := digest_of_files(task, config["task"]["data_dir"])) is not None:
        config["task"]["data_sha256"] = digest
        for key in (path.removeprefix("task.") for path in DATA_PATHS):  # the run is loaded from other folders too
            if place := config["task"].get(key):
                config["task"][key] = str(Path(place).expanduser().absolute())
    return task, config, code


def _check(config: dict[str, Any], task: Task) -> None:
    """Checks the groups of a resolved config, and writes their constructors' defaults and the epochs of the task."""
    for group, key in (("mixer", "name"), ("task", "name"), ("task", "setting")):
        _check_name(f"{group}.{key}", config[group].get(key))
    for prefix, mixer in mixers_of(config["mixer"]).items():
        check_component(prefix, mixer)
    for group in ("optimizer", "schedule"):
        check_component(group, config[group])
    for group, keys in (("trainer", TrainerConfig), ("model", ModelConfig)):
        check_arguments(group, keys, config[group])
        keys(**config[group])
    if is_hybrid(config["mixer"]):
        check_keys(config["mixer"], config["model"]["n_layers"])
    data_dir, allowed = config["task"]["data_dir"], config["task"]["allow_shared_rows"]
    if data_dir is not None and (not isinstance(data_dir, str) or not data_dir.strip()):
        raise ValueError(f"task.data_dir={data_dir!r} must be the name of a folder, or null")
    if type(allowed) is not bool:
        raise ValueError(f"task.allow_shared_rows={allowed!r} must be true or false")
    replicas_of(config)
    stop = config["trainer"]["stop_above"]
    if task.score.is_accuracy and stop is not None and stop >= 1:
        raise ValueError(f"trainer.stop_above={stop} must be an accuracy in [0, 1), or null")
    if task.trained_rows is not None:  # the passes that it begins
        config["trainer"]["epochs"] = math.ceil(task.trained_rows / task.num_examples("train"))
    if (steps := _steps_of(config, task)) > MOST_STEPS:
        group, key = ("trainer", "epochs") if task.trained_rows is None else ("task", "tokens")
        raise ValueError(f"{group}.{key}={config[group][key]} makes {steps} steps: a run has at most {MOST_STEPS}")


def _steps_of(config: Mapping[str, Any], task: Task) -> int:
    trainer, num_rows = config["trainer"], task.num_examples("train")
    return steps_of(task.trained_rows or trainer["epochs"] * num_rows, num_rows, trainer["batch_size"])


def _check_name(key: str, value: Any) -> None:
    """Raises `ValueError` unless `value` can name a row, a column and a curve."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{key}={value!r} must be a name: a string in one printable line that is not empty")


# `${steps:750}`: so many steps as a fraction of the training.
OmegaConf.register_new_resolver(
    "steps", lambda number, *, _root_: number / _steps_of(_root_, build_task(_root_.task)), replace=True
)


def check_component(prefix: str, part: dict[str, Any]) -> None:
    """Raises ValueError unless `_target_` names a class of its group that takes the other keys but `name`.

    `prefix` is that of the keys of `part`, such as `mixer.options.0`. The constructor's defaults are written into
    `part`, as an absent key is false.
    """
    group = prefix.partition(".")[0]
    _check_name(f"{prefix}.name", part.get("name"))
    name = f"{prefix}={part['name']}"
    base, supplied = _COMPONENTS[group]
    component = subclass_of(torch.optim.Optimizer if group == "optimizer" else base, part.get("_target_"), name)
    if not issubclass(component, base):
        trains = f"optimizer=torch 'optimizer.all={{_target_: {part['_target_']}}}' trains by it"
        raise ValueError(f"{name}: {component.__name__} is an optimizer of one model's parameters: {trains}")
    if group == "mixer":
        supplied = (*supplied, *asked_for(part["_target_"], part))
    own = ("name", "_target_", *(("lr",) if group == "optimizer" else ()))  # `replicas_of` checks lr
    args = {key: value for key, value in part.items() if key not in own}
    check_arguments(prefix, component, args, supplied, f"the yaml of {name}")
    part |= defaults_of(component, (*part, *supplied))
    for key in PARTS if issubclass(component, TorchOptimizer) else ():
        if part.get(key) is not None:
            _check_inner(f"{prefix}.{key}", part[key])


def _check_inner(prefix: str, part: Any) -> None:
    """As `check_component`, of an optimizer inside a `TorchOptimizer`."""
    if not isinstance(part, dict) or "_target_" not in part:
        raise ValueError(f"{prefix}={part!r} must be a group of keys with a _target_, such as torch.optim.NAdam")
    package = str(part["_target_"]).partition(".")[0]
    if package in ("pytorch_optimizer", "heavyball") and find_spec(package) is None:
        raise ValueError(f"{prefix}: {package} is not installed: pip install 'mixerlab[optimizers]'")
    component = subclass_of(torch.optim.Optimizer, part["_target_"], prefix)
    names = inspect.signature(component).parameters
    if "params" not in names or any("optimizer" in name for name in names):
        raise ValueError(
            f"{prefix}: {component.__name__} takes the model or another optimizer, and a run gives it parameters"
        )
    own = {key: value for key, value in part.items() if key != "_target_"}
    check_arguments(prefix, component, own, ("params", "lr"), f"the keys of {prefix}")
    part |= defaults_of(component, (*part, "params", "lr"))


def asked_for(target: str, keys: Collection[Any]) -> list[str]:
    """Of `layer_idx`, from 0 on, and `num_layers` what the class of a mixer takes and the `keys` of its yaml lack."""
    taken = inspect.signature(class_of(target)).parameters
    return [key for key in ("layer_idx", "num_layers") if key in taken and key not in keys]


def code_versions(config: Mapping[str, Any]) -> dict[str, str]:
    """A hash of the code of each part of a run: `mixer`, `task`, and `training` with model, optimizer and schedule."""
    training = [
        "mixerlab.training.fit",
        "mixerlab.models.language_model",
        "mixerlab.models.auto_encoder",
        *_modules(config["optimizer"]),
        *_modules(config["schedule"]),
    ]
    task = _modules(config["task"])
    return {"mixer": mixer_version(config), "task": code_version(*task), "training": code_version(*training)}


def mixer_version(config: Mapping[str, Any]) -> str:
    """The hash of the mixers' code, which today's names of classes lead to."""
    return code_version(*(module for mixer in mixers_of(config["mixer"]).values() for module in _modules(mixer)))


def _modules(part: Mapping[str, Any]) -> list[str]:
    """Those of the class of a part of a run, and of what makes the values of its keys."""
    module, _, _ = part["_target_"].rpartition(".")
    return [module, *(inner for value in part.values() for inner in _makers(value))]


def _makers(value: Any) -> Iterator[str]:
    """The modules of Python that hold what each `_target_` in `value` names, at any depth."""
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _makers(inner)
    if isinstance(value, Mapping) and "_target_" in value:
        with suppress(Exception):  # which is said where it is called
            # A package only passes it on, and of an installed one no import is followed.
            module = get_object(value["_target_"]).__module__
            if str(sys.modules[module].__file__).endswith(".py"):
                yield module
