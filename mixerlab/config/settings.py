"""Difficulty as data: the named settings in a task's yaml, and the task that a config describes.

A task's yaml begins with what all tasks have in common, `conf/task_base.yaml`. It has either `baseline`
(parameters) and `changes` (parameter -> other values, one at a time), or `levels` (name -> parameters), as the
challenge tasks do. `setting` names the one in use, and a parameter written as `${setting:<parameter>}` takes its
value from there unless it is set directly.
"""

import inspect
from collections.abc import Mapping
from numbers import Real
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from mixerlab.config.arguments import check_arguments, class_of
from mixerlab.records.errors import with_place
from mixerlab.tasks.base import SPLITS, Task

# Keys of a task's yaml that are not constructor parameters.
_CONFIG_KEYS = {
    "name",
    "_target_",
    "setting",
    "baseline",
    "changes",
    "levels",
    "allow_shared_rows",
    "data_dir",
    "data_sha256",  # only in the resolved config of a run
}
# Of both arrays of all splits: 64 GiB of int64. More is a typing error.
_MOST_TOKENS = 2**32
_LARGEST_VOCABULARY = 2**20

_BASE_LINE = "defaults: [/task_base@_here_, _self_]"
_KEY_LINES = {  # key that every task's yaml must give -> the line that does
    "name": "name: <name of the yaml>",
    "_target_": "_target_: mixerlab.tasks.<file>.<Class>",
    "setting": _BASE_LINE,
    "data_dir": _BASE_LINE,
}
_LEVELS_LINE = "levels: {<setting>: {<parameter>: <value>, ...}, ...}"
_SETTING_LINES = {  # key that holds settings -> (what its values must be, how it is written)
    "baseline": (object, f"baseline: {{<parameter>: <value>, ...}}`, or `{_LEVELS_LINE}"),
    "changes": (ListConfig, "changes: {<parameter>: [<other value>, ...], ...}"),
    "levels": (DictConfig, _LEVELS_LINE),
}


def settings_of(task_cfg: DictConfig) -> dict[str, dict]:
    """The named settings: name -> parameters that it changes, "baseline" first with {}; for levels, all.

    Raises a ValueError that names the first key that the task's yaml lacks, and the line to add.
    """
    _check_keys(task_cfg)
    if "levels" in task_cfg:
        return {name: dict(level) for name, level in task_cfg.levels.items()}
    return {"baseline": {}} | {
        f"{key}-{value}": {key: value} for key, values in task_cfg.changes.items() for value in values
    }


def setting_name(task_cfg: DictConfig) -> str:
    """The label of the difficulty that the config resolves to.

    The name of the setting whose parameters it has; where none has, `key=value` pairs joined by "," of what
    differs from the baseline, or, for a task with levels, the name of the nearest level and what differs from it: that
    with the fewest differences, of equal ones the first. So it depends on the values only, as a `run_id` does. Test
    rows of another length count as a difference.
    """
    label = _label_at_one_length(task_cfg)
    test_seq_len = task_cfg.get("test_seq_len")
    if test_seq_len in (None, task_cfg.seq_len):
        return label
    at_length = f"test_seq_len={test_seq_len}"
    return at_length if label == "baseline" else f"{label},{at_length}"


def _label_at_one_length(task_cfg: DictConfig) -> str:
    settings = {name: _parameters(task_cfg, name) for name in settings_of(task_cfg)}
    resolved = {key: task_cfg[key] for key in next(iter(settings.values()))}
    differing = {
        name: [f"{key}={_by_value(value)}" for key, value in resolved.items() if value != parameters[key]]
        for name, parameters in settings.items()
    }
    nearest = min(differing, key=lambda name: len(differing[name]))
    if not differing[nearest]:
        return nearest
    return ",".join([nearest, *differing[nearest]] if "levels" in task_cfg else differing["baseline"])


def _by_value(value: Any) -> Any:
    """0.0 as 0, since a `run_id` counts them as one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def build_task(task_cfg: DictConfig) -> Task:
    """The task that the config describes.

    Raises:
        ValueError: a key that is missing or of no use to the task, or a class that is not there or no task.
    """
    # A wrong name is an error even where nothing is taken from it.
    _parameters(task_cfg, task_cfg.get("setting"))
    _check_effect(task_cfg)
    try:
        task_class = class_of(task_cfg._target_)
    except ValueError as error:
        raise ValueError(f"task={task_cfg.name}: {error}") from error
    if not issubclass(task_class, Task):
        raise ValueError(f"task={task_cfg.name}: {task_class.__name__} must be a subclass of mixerlab.Task")
    parameters = set(inspect.signature(task_class).parameters)
    given = set(task_cfg) - _CONFIG_KEYS
    in_settings = {key for changed in settings_of(task_cfg).values() for key in changed}
    wrong = [
        f"{key} is missing, add `{key}: ${{setting:{key}}}` or a value to its yaml"
        for key in sorted(parameters - given)
    ] + [
        f"{key} is no parameter of {task_class.__name__}, make it a field of this dataclass or remove it"
        for key in sorted((given | in_settings | set(task_cfg.get("baseline", {}))) - parameters)
    ]
    if wrong:
        raise ValueError(f"task={task_cfg.name}: {'; '.join(wrong)}")
    resolved = OmegaConf.to_container(task_cfg, resolve=True)
    assert isinstance(resolved, dict)
    arguments: dict[str, Any] = {key: resolved[key] for key in parameters}
    if arguments["test_seq_len"] == arguments["seq_len"]:
        arguments["test_seq_len"] = None
    check_arguments("task", task_class, arguments)
    _check_size(arguments)
    try:
        task = task_class(**arguments)
        task.of_split("test")  # which refuses a length that the task cannot have
        _check_chance(task.chance)
    except ValueError:
        raise
    except Exception as error:  # of the user's code
        raise ValueError(f"task={task_cfg.name}: {with_place(error)}") from error
    return task


def _check_effect(task_cfg: DictConfig) -> None:
    """Raises a ValueError if the setting changes one parameter, and that has been set to another value directly."""
    if "levels" in task_cfg:
        return
    name = task_cfg.setting
    for key, value in settings_of(task_cfg)[name].items():
        if key in task_cfg and task_cfg[key] != value:
            raise ValueError(
                f"task.setting={name} has no effect, because task.{key}={task_cfg[key]} is set as well, directly or by"
                " an experiment: leave one of them out"
            )


def _check_chance(chance: object) -> None:
    if chance is not None and not (isinstance(chance, Real) and 0 <= float(chance) <= 1):
        raise ValueError(f"chance={chance!r} must be an accuracy in [0, 1], or None")


def _check_size(arguments: Mapping[str, Any]) -> None:
    """Raises a ValueError for a dataset that no memory holds; signs and types are the task's own business."""
    sizes = {key: value for key, value in arguments.items() if type(value) is int and value > 0}
    rows = {split: sizes.get(f"num_{split}_examples", 0) for split in SPLITS}
    length = sizes.get("seq_len", 0)
    for key, tokens, of in (
        ("seq_len", length * sum(rows.values()), f"{sum(rows.values())} rows in all splits"),
        ("test_seq_len", sizes.get("test_seq_len", 0) * rows["test"], f"{rows['test']} test rows"),
    ):
        if 2 * tokens > _MOST_TOKENS:
            raise ValueError(
                f"task.{key}={sizes[key]} with {of} is more than memory holds: inputs and targets may have"
                f" 2^{_MOST_TOKENS.bit_length() - 1} tokens"
            )
    if sizes.get("vocab_size", 0) > _LARGEST_VOCABULARY:
        raise ValueError(f"task.vocab_size={sizes['vocab_size']} must be at most {_LARGEST_VOCABULARY}")


def _check_keys(task_cfg: DictConfig) -> None:
    """Raises a ValueError for the first key that is missing or cannot be read as settings."""
    name = task_cfg.get("name", "?")
    for key, line in _KEY_LINES.items():
        if key not in task_cfg:
            raise ValueError(f"task={name}: {key} is missing, add `{line}` to its yaml")
    for key in ("levels",) if "levels" in task_cfg else ("baseline", "changes"):
        kind, line = _SETTING_LINES[key]
        value = task_cfg.get(key)
        if not (isinstance(value, DictConfig) and all(isinstance(inner, kind) for inner in value.values())):
            raise ValueError(f"task={name}: {key} is missing or in another form, write `{line}` in its yaml")
    for level in task_cfg.get("levels", ()):
        if "=" in str(level):
            raise ValueError(
                f"task={name}: the level {level!r} has a `=`, by which tables tell sizes from names: rename it"
            )


def _parameters(task_cfg: DictConfig, name: str | None) -> dict:
    """All varying parameters under the named setting."""
    settings = settings_of(task_cfg)
    if name not in settings:
        every = ", or with -m `*` for all" if name == "*" else ""
        raise ValueError(
            f"task.setting={name}: {task_cfg.name} has no such setting; choose {', '.join(settings)}{every}"
        )
    return dict(task_cfg.get("baseline", {})) | settings[name]


def _resolve_setting(key: str, *, _parent_: DictConfig) -> Any:
    parameters = _parameters(_parent_, _parent_.get("setting"))
    if key not in parameters:
        raise ValueError(
            f"task={_parent_.name}: ${{setting:{key}}} has no value, settings give {', '.join(parameters)}"
        )
    return parameters[key]


OmegaConf.register_new_resolver("setting", _resolve_setting, replace=True)
