"""What a run's config asks for, checked key by key before anything is built or written."""

import inspect
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mixerlab.config.arguments import check_arguments, class_of, defaults_of, takes_only_whole_numbers
from mixerlab.config.hints import unresolved
from mixerlab.config.hybrid import check_keys, is_hybrid, mixers_of
from mixerlab.config.settings import build_task, setting_name
from mixerlab.records.code_version import code_version
from mixerlab.records.identity import flatten, present, replicas_of
from mixerlab.records.named import check_sweep_name
from mixerlab.records.names import AVERAGE
from mixerlab.records.schema import check_name
from mixerlab.tasks.base import Task
from mixerlab.tasks.data import digest_on_disk
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.trainer_config import TrainerConfig

# Groups whose keys are the arguments of the class that their `_target_` names, with the arguments that a run supplies.
COMPONENTS: dict[str, tuple[str, ...]] = {
    "mixer": ("d_model",),
    "optimizer": ("population", "lr", "schedule", "total_steps"),
    "schedule": (),
}
# The other keys at the top level of a config.
_GROUPS = (*COMPONENTS, "task", "trainer", "model", "logger")
_VALUES = ("seed", "results_dir", "force", "dry_run", "sweep", "wait")
_SIZES_OF_MODEL = ("d_model", "n_layers")
MOST_STEPS = 2**24  # the optimizer counts them in float32
CHANGED = "changed"  # of `force`: repeats finished runs whose code has changed since
_LONGEST_NAME = 100  # characters
# Beyond these a value is a typing error: its run would take days, or more memory than there is.
_LARGEST = {
    "model.d_model": 4096,
    "model.n_layers": 256,
    "optimizer.ns_steps": 64,
    "trainer.epochs": 1_000_000,
    "trainer.batch_size": 1_000_000,
}


def checked(cfg: DictConfig) -> tuple[Task, dict[str, Any]]:
    """The task, and the resolved config with its setting's name, constructors' defaults and its dataset's digest.

    Raises:
        ValueError: the first unknown key, missing key, or value that no run can have.
    """
    try:
        _check_top_level(cfg)
        mixers = mixers_of(cfg.mixer)
        for prefix, part in (mixers | {group: cfg[group] for group in ("task", "optimizer", "schedule")}).items():
            if "_target_" in part and not isinstance(part._target_, str):
                raise ValueError(f"{prefix}._target_={part._target_!r} must be the dotted name of a class")
        task = build_task(cfg.task)  # before anything else resolves: its message for a wrong setting is the clear one
        config = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
        config["task"]["setting"] = setting_name(cfg.task)
        config["task"]["test_seq_len"] = task.test_seq_len  # null for the length of the other rows: the same run
    except OmegaConfBaseException as error:  # a value that is ???, or ${nothing}
        raise ValueError(unresolved(error)) from error
    _check(config)
    _add_defaults(config)
    if config["task"]["data_dir"] is not None:
        config["task"]["data_sha256"] = digest_on_disk(task, config["task"]["data_dir"])
    return task, config


def _add_defaults(config: dict[str, Any]) -> None:
    """Writes the defaults of constructors that are not null or false, since an absent key counts as these."""
    for group, supplied in COMPONENTS.items():
        for part in mixers_of(config["mixer"]).values() if group == "mixer" else [config[group]]:
            part |= present(defaults_of(class_of(part["_target_"]), (*part, *supplied)))


def is_whole_number(cfg: DictConfig, key: str) -> bool:
    """Whether `checked` refuses 0.5 for a key of a composed config because the key takes whole numbers only.

    Raises:
        ValueError: the class that takes the key cannot be imported.
    """
    prefix, _, name = key.rpartition(".")
    if prefix == "model":
        return name in _SIZES_OF_MODEL
    if prefix == "trainer":
        return takes_only_whole_numbers(TrainerConfig, name)
    part = OmegaConf.select(cfg, prefix) if prefix.partition(".")[0] in (*COMPONENTS, "task") else None
    if not isinstance(part, DictConfig) or not isinstance(part.get("_target_"), str):
        return False
    return takes_only_whole_numbers(class_of(part._target_), name)


def code_versions(config: Mapping[str, Any]) -> dict[str, str]:
    """A hash of the code of each part of a run: `mixer`, `task`, and `training` with model, optimizer and schedule."""
    parts = {
        "task": [config["task"]["_target_"]],
        "training": [
            "mixerlab.training.fit.train",
            "mixerlab.models.language_model.LanguageModel",
            "mixerlab.models.auto_encoder.AutoEncoder",
            config["optimizer"]["_target_"],
            config["schedule"]["_target_"],
        ],
    }
    return {"mixer": mixer_version(config)} | {part: _version_of(targets) for part, targets in parts.items()}


def mixer_version(config: Mapping[str, Any]) -> str:
    """The hash of the mixers' code, which today's names of classes lead to."""
    return _version_of(mixer["_target_"] for mixer in mixers_of(config["mixer"]).values())


def _version_of(targets: Iterable[str]) -> str:
    return code_version(*(target.rpartition(".")[0] for target in targets))


def _check_top_level(cfg: DictConfig) -> None:
    if "experiment" in cfg:  # where Hydra puts the keys of a yaml that does not say otherwise
        raise ValueError("the experiment's yaml must begin with the line `# @package _global_` (sweeps/README.md)")
    _check_keys("", cfg, (*_GROUPS, *_VALUES))
    for group in _GROUPS:
        if not isinstance(cfg[group], DictConfig):
            raise ValueError(f"{group}={cfg[group]!r}: {group} is a group of keys, write {group}.<key>=<value>")


def _check_keys(prefix: str, given: Collection[str], wanted: Collection[str]) -> None:
    """Raises ValueError for the first unknown or missing key."""
    for key in given:
        if key not in wanted:
            raise ValueError(f"unknown key {prefix}{key}; valid keys: {', '.join(prefix + key for key in wanted)}")
    _check_present(prefix, given, wanted)


def _check_present(prefix: str, given: Collection[str], wanted: Collection[str]) -> None:
    for key in wanted:
        if key not in given:
            raise ValueError(f"{prefix}{key} is missing; the files in conf/ give it")


def _check(config: Mapping[str, Any]) -> None:
    for group in (*COMPONENTS, "task"):
        _check_name(f"{group}.name", config[group].get("name"))
    if config["task"]["name"] == AVERAGE:
        raise ValueError(f"task.name={AVERAGE} is the row of the tasks' mean: choose another name")
    check_name("task.setting", config["task"]["setting"])
    for prefix, mixer in mixers_of(config["mixer"]).items():
        _check_component(prefix, mixer, COMPONENTS["mixer"])
    _check_component("optimizer", config["optimizer"], COMPONENTS["optimizer"], ("lr",), PopulationOptimizer)
    _check_component("schedule", config["schedule"], COMPONENTS["schedule"])
    _check_keys("trainer.", config["trainer"], inspect.signature(TrainerConfig).parameters)
    check_arguments("trainer", TrainerConfig, config["trainer"])
    TrainerConfig(**config["trainer"])
    _check_model(config["model"], config["mixer"])
    _check_values(config)
    _check_data_keys(config["task"])
    replicas_of(config)
    _check_typing_errors(flatten(config))
    _check_steps(config["task"], config["trainer"])


def _check_model(model: Mapping[str, Any], mixer: Mapping[str, Any]) -> None:
    _check_keys("model.", model, (*_SIZES_OF_MODEL, "linear_std", "autoencoder_redraw_all", "may_see_future"))
    for key in _SIZES_OF_MODEL:
        if type(model[key]) is not int or model[key] < 1:
            raise ValueError(f"model.{key}={model[key]!r} must be a whole number of at least 1")
    if is_hybrid(mixer):
        check_keys(mixer, model["n_layers"])
    std = model["linear_std"]
    if std is not None and (type(std) not in (int, float) or not 0 < std < math.inf):
        raise ValueError(f"model.linear_std={std!r} must be a finite number above 0, or null for PyTorch's default")
    for key in ("autoencoder_redraw_all", "may_see_future"):
        _check_flag(f"model.{key}", model[key])


def _check_flag(key: str, flag: object) -> None:
    if type(flag) is not bool:
        raise ValueError(f"{key}={flag!r} must be true or false")


def _check_values(config: Mapping[str, Any]) -> None:
    """The values at the top level of a config, but the seeds."""
    if config["force"] != CHANGED and type(config["force"]) is not bool:
        raise ValueError(f"force={config['force']!r} must be true, false or {CHANGED}")
    _check_flag("dry_run", config["dry_run"])
    if type(config["results_dir"]) is not str or not config["results_dir"].strip():
        raise ValueError(f"results_dir={config['results_dir']!r} must be the name of a folder")
    if config["sweep"] is not None:
        check_sweep_name(config["sweep"])
    wait = config["wait"]
    if wait is not None and (type(wait) not in (int, float) or not 0 <= wait < math.inf):
        raise ValueError(f"wait={wait!r} must be a number of seconds, or null: as long as it takes")


def _check_steps(task: Mapping[str, Any], trainer: Mapping[str, Any]) -> None:
    steps = trainer["epochs"] * math.ceil(task["num_train_examples"] / trainer["batch_size"])
    if steps > MOST_STEPS:
        raise ValueError(f"trainer.epochs={trainer['epochs']} makes {steps} steps: a run has at most {MOST_STEPS}")


def _check_typing_errors(flat: Mapping[str, Any]) -> None:
    """Numbers of too many digits, and flags that would be read as strings, also those without a type annotation."""
    for key, largest in _LARGEST.items():
        if isinstance(flat.get(key), int | float) and flat[key] > largest:
            raise ValueError(f"{key}={flat[key]} must be at most {largest}")
    for key, value in flat.items():
        is_name = key in ("sweep", "results_dir") or key.endswith(".name")
        if isinstance(value, str) and not is_name and value.lower() in ("yes", "no", "on", "off"):
            raise ValueError(f"{key}={value} would be read as a string, which counts as true: write true or false")


def _check_component(
    prefix: str, part: Mapping[str, Any], supplied: Collection[str], beside: tuple = (), base: type = object
) -> None:
    """Raises ValueError unless `_target_` names a class that takes the other keys, except `name` and those `beside`.

    It must be a subclass of `base`.
    """
    ours = ("name", "_target_", *beside)
    _check_name(f"{prefix}.name", part.get("name"))
    _check_present(f"{prefix}.", part, ours)
    try:
        component = class_of(part["_target_"])
    except ValueError as error:
        raise ValueError(f"{prefix}={part['name']}: {error}") from error
    if not issubclass(component, base):
        wanted = f"{base.__module__}.{base.__name__}"
        raise ValueError(f"{prefix}={part['name']}: {component.__name__} must be a subclass of {wanted}")
    given = {key: value for key, value in part.items() if key not in ours}
    check_arguments(prefix, component, given, supplied, yaml=f"the yaml of {prefix}={part['name']}")


def _check_name(key: str, value: Any) -> None:
    """As `check_name`; and the first character is one with which neither a formula nor a hidden label begins."""
    check_name(key, value)
    if not value[0].isalnum():
        raise ValueError(f"{key}={value!r} must begin with a letter or a digit")
    if len(value) > _LONGEST_NAME:
        raise ValueError(f"{key}={value[:20]!r}... has {len(value)} characters, and must have at most {_LONGEST_NAME}")


def _check_data_keys(task: Mapping[str, Any]) -> None:
    data_dir, allowed = task["data_dir"], task.get("allow_shared_rows", False)
    if data_dir is not None and (type(data_dir) is not str or not data_dir.strip()):
        raise ValueError(f"task.data_dir={data_dir!r} must be the name of a folder, or null")
    if data_dir is None and "data_sha256" in task:
        raise ValueError("unknown key task.data_sha256: a run finds the digest of task.data_dir by itself")
    if type(allowed) is not bool:
        raise ValueError(f"task.allow_shared_rows={allowed!r} must be true or false")
