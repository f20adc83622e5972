"""Difficulty as data: the named settings in a task's yaml, and the task that a config describes.

A MAD task's yaml has `baseline` (parameters) and `changes` (parameter -> other values, one at a time); a
challenge task's has `levels` (name -> parameters). `setting` names the one in use, and a parameter written as
`${setting:<parameter>}` takes its value from there unless it is set directly.
"""

import inspect

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from tasks.base import Task

# Keys of a task's yaml that are not constructor parameters.
_CONFIG_KEYS = {"name", "_target_", "setting", "baseline", "changes", "levels", "data_dir"}


def settings_of(task_cfg: DictConfig) -> dict[str, dict]:
    """The named settings: name -> parameters that it changes, "baseline" first with {}; for levels, all."""
    if "levels" in task_cfg:
        return {name: dict(level) for name, level in task_cfg.levels.items()}
    return {"baseline": {}} | {
        f"{key}-{value}": {key: value} for key, values in task_cfg.changes.items() for value in values
    }


def setting_name(task_cfg: DictConfig) -> str:
    """The label of the difficulty that the config resolves to.

    The name of the setting whose parameters it has; where none has, `key-value` pairs joined by "," of what
    differs from the baseline, or, for a task with levels, the level's name and what differs from it.
    """
    settings = {name: _parameters(task_cfg, name) for name in settings_of(task_cfg)}
    resolved = {key: task_cfg[key] for key in next(iter(settings.values()))}
    for name, parameters in settings.items():
        if parameters == resolved:
            return name
    origin = task_cfg.setting if "levels" in task_cfg else "baseline"
    differing = [f"{key}-{value}" for key, value in resolved.items() if value != settings[origin][key]]
    return ",".join(([origin] if "levels" in task_cfg else []) + differing)


def register_resolvers() -> None:
    """Registers `${setting:<parameter>}`; calling it again changes nothing."""
    OmegaConf.register_new_resolver("setting", _resolve_setting, replace=True)


def build_task(task_cfg: DictConfig) -> Task:
    """The task that the config describes; ValueError for a setting or parameter that it cannot have."""
    _parameters(task_cfg, task_cfg.setting)  # a wrong name is an error even where nothing is taken from it
    task_class = get_class(task_cfg._target_)
    parameters = set(inspect.signature(task_class).parameters)
    given = set(task_cfg) - _CONFIG_KEYS
    if given != parameters:
        raise ValueError(
            f"task={task_cfg.name}: {task_class.__name__} takes {', '.join(sorted(parameters))};"
            f" missing: {', '.join(sorted(parameters - given)) or 'none'},"
            f" unknown: {', '.join(sorted(given - parameters)) or 'none'}"
        )
    return task_class(**{key: task_cfg[key] for key in parameters})


def _parameters(task_cfg: DictConfig, name: str) -> dict:
    """All varying parameters under the named setting."""
    settings = settings_of(task_cfg)
    if name not in settings:
        raise ValueError(f"task.setting={name}: {task_cfg.name} has no such setting; choose {', '.join(settings)}")
    return dict(task_cfg.get("baseline", {})) | settings[name]


def _resolve_setting(key: str, *, _parent_: DictConfig):
    parameters = _parameters(_parent_, _parent_.setting)
    if key not in parameters:
        raise ValueError(
            f"task={_parent_.name}: ${{setting:{key}}} has no value, settings give {', '.join(parameters)}"
        )
    return parameters[key]
