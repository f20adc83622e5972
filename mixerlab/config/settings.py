"""Difficulty as data: the named settings in a task's yaml, and the task that a config describes.

A task's yaml has either `baseline` (parameters) and `changes` (parameter -> other values, one at a time), or `levels`
(name -> parameters). Without either, its plain values are the baseline. `setting` names the one in use. A parameter
written as `${setting:<parameter>}`, or that `follow_setting` makes so, takes its value from there unless it is set
directly.
"""

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any, cast

from hydra.conf import HydraConf
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from mixerlab.config.arguments import check_arguments, subclass_of
from mixerlab.config.project import composed_anew, given
from mixerlab.records.errors import users_code, with_place
from mixerlab.records.names import BASELINE
from mixerlab.records.schema import MEASURED, Score
from mixerlab.tasks.base import Task

# Keys of a task's yaml that are not constructor parameters; the last is only in the resolved config of a run.
_BASE_KEYS = ("name", "_target_", "setting", "data_dir", "allow_shared_rows")
# Keys of conf/task_base.yaml that no setting changes.
_PLAIN = ("num_val_examples", "num_test_examples", "data_seed", "test_seq_len")
_OTHER_KEYS = (*_BASE_KEYS, "baseline", "changes", "levels", "data_sha256")


def settings_of(task_cfg: DictConfig) -> dict[str, dict[str, Any]]:
    """The named settings, the baseline first: name -> all parameters of `baseline` or of a level."""
    name = task_cfg.get("name", "?")
    for key in _BASE_KEYS:
        if key not in task_cfg:
            raise ValueError(
                f"task={name}: {key} is missing: begin its yaml with defaults: [/task_base@_here_, _self_]"
            )
    baseline, changes, levels = (task_cfg.get(key) for key in ("baseline", "changes", "levels"))
    # All settings give the same parameters: by their values the name of a setting is found.
    if _is_group(levels, DictConfig) and len({frozenset(parameters) for parameters in levels.values()}) == 1:
        return {level: dict(parameters) for level, parameters in levels.items()}
    changes = {} if changes is None else changes
    if levels is None and _is_group(baseline) and _is_group(changes, ListConfig) and set(changes) <= set(baseline):
        changed = ((key, value) for key, values in changes.items() for value in values)
        return {BASELINE: dict(baseline)} | {f"{key}-{value}": {**baseline, key: value} for key, value in changed}
    given_keys = {"baseline": baseline, "changes": changes or None, "levels": levels}
    found = ", ".join(f"{key}: {value}" for key, value in given_keys.items() if value is not None)
    raise ValueError(
        f"task={name}: its yaml may have baseline: {{<parameter>: <value>}} and changes: {{<parameter>: [<value>]}} of"
        " some of these, or levels: {<setting>: {<parameter>: <value>}}, each of the same parameters; it has"
        f" {found}"
    )


def follow_setting(cfg: DictConfig, hydra_config: HydraConf) -> None:
    """Has the plain values of a task's yaml follow `setting`, as if it had `${setting:<parameter>}` in their place.

    Where the yaml has `levels`, those that they name; without `baseline` and `levels` all, which become its `baseline`.
    What the command or an experiment has set stays.
    """
    levels = "levels" in cfg.task
    if levels:
        keys = list(next(iter(settings_of(cfg.task).values())))
        if not any(_is_plain(cfg.task, key) for key in keys):
            return
    elif "baseline" in cfg.task:
        return
    else:
        keys = [str(key) for key in cfg.task if key not in (*_OTHER_KEYS, *_PLAIN)]
    own = composed_anew("config", [f"task={hydra_config.runtime.choices['task']}"], hydra_config).task
    plain = [key for key in keys if _is_plain(own, key)]
    with open_dict(cfg):
        if not levels:
            cfg.task.baseline = {key: own[key] for key in plain}
        for key in plain:
            is_set = any(text.startswith(f"task.{key}=") for text in given(hydra_config))
            if not is_set and cfg.task[key] == own[key]:
                cfg.task[key] = f"${{setting:{key}}}"


def _is_plain(task_cfg: DictConfig, key: str) -> bool:
    return key in task_cfg and not OmegaConf.is_interpolation(task_cfg, key)


def _is_group(value: object, kind: type = object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(item, kind) for item in value.values())


def _parameters(task_cfg: DictConfig, name: str | None) -> dict[str, Any]:
    settings = settings_of(task_cfg)
    if name not in settings:
        more = ", or with -m `*` for all" if name == "*" else ""
        if name == BASELINE:
            more = f"; the line `setting: {next(iter(settings))}` in its yaml makes that its default"
        raise ValueError(
            f"task.setting={name}: {task_cfg.name} has no such setting; choose {', '.join(settings)}{more}"
        )
    return settings[name]


def _resolve_setting(key: str, *, _parent_: DictConfig) -> Any:
    parameters = _parameters(_parent_, _parent_.get("setting"))
    if key not in parameters:
        raise ValueError(
            f"task={_parent_.name}: ${{setting:{key}}} has no value, settings give {', '.join(parameters)}"
        )
    return parameters[key]


OmegaConf.register_new_resolver("setting", _resolve_setting, replace=True)


def setting_name(task_cfg: DictConfig) -> str:
    """The label of the difficulty that the config resolves to.

    The name of the setting whose parameters it has; where none has, `key=value` pairs joined by "," of what differs
    from the baseline, or, for a task with levels, the name of the level with the fewest differences and these. So it
    depends on the values only, as a `run_id` does. Test rows of another length count as a difference.
    """
    settings = settings_of(task_cfg)
    resolved = {key: task_cfg[key] for key in next(iter(settings.values()))}
    differing = {
        name: [f"{key}={_by_value(value)}" for key, value in resolved.items() if value != parameters[key]]
        for name, parameters in settings.items()
    }
    nearest = min(differing, key=lambda name: len(differing[name]))
    label = [nearest, *differing[nearest]]
    if differing[nearest] and "levels" not in task_cfg:
        label = differing[BASELINE]
    test_seq_len = task_cfg.get("test_seq_len")
    if test_seq_len not in (None, task_cfg.seq_len):
        label = [*(label if label != [BASELINE] else []), f"test_seq_len={test_seq_len}"]
    return ",".join(label)


def _by_value(value: Any) -> Any:
    """0.0 as 0, since a `run_id` counts them as one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def build_task(task_cfg: DictConfig) -> Task:
    """The task that the config describes."""
    _check_setting(task_cfg)
    name = f"task={task_cfg.name}"
    task_class = subclass_of(Task, task_cfg._target_, name)
    resolved = cast(dict[str, Any], OmegaConf.to_container(task_cfg, resolve=True, throw_on_missing=True))
    args = {key: value for key, value in resolved.items() if key not in _OTHER_KEYS}
    check_arguments("task", task_class, args, yaml=f"the yaml of {name}")
    if args.get("test_seq_len") == args["seq_len"]:
        args["test_seq_len"] = None
    try:
        with users_code():
            task = task_class(**args)
            for own in (task, task.for_split("test")):  # which refuses a length that the task cannot have
                _ = own.input_length
            _check_score(task)
    except ValueError:
        raise
    except Exception as error:  # of the user's code
        raise ValueError(f"{name}: {with_place(error)}") from error
    return task


def _check_setting(task_cfg: DictConfig) -> None:
    """Raises ValueError for a setting that there is not, or whose parameter does not reach the task."""
    setting = task_cfg.get("setting")
    follows = any(OmegaConf.is_interpolation(task_cfg, str(key)) for key in task_cfg)
    if setting not in settings_of(task_cfg) and not follows:
        return  # only a label, as in the resolved config of a run
    for key, value in _parameters(task_cfg, setting).items():
        if key not in task_cfg:
            raise ValueError(f"task={task_cfg.name}: {key} is missing: add `{key}: ${{setting:{key}}}` to its yaml")
        is_changed = "levels" not in task_cfg and value != task_cfg.baseline[key]
        if is_changed and task_cfg[key] != value:
            raise ValueError(
                f"task.setting={setting} has no effect, because task.{key}={task_cfg[key]} is set as well, directly or"
                " by an experiment: leave one of them out"
            )


def _check_score(task: Task) -> None:
    score, chance = task.score, task.chance
    if not isinstance(score, Score) or not re.fullmatch(r"[a-z][a-z0-9_]*", score.name):
        raise ValueError(f"score={score!r} must be a mixerlab.Score, whose name is of a-z, 0-9 and _")
    if score.name not in MEASURED and type(task).score_from is Task.score_from:
        raise ValueError(f"score={score.name} is none of {', '.join(MEASURED)}: define score_from, which makes it")
    most = 1 if score.is_accuracy else math.inf
    if chance is not None and not (isinstance(chance, Real) and 0 <= float(chance) <= most):
        raise ValueError(f"chance={chance!r} must be a score of at least 0, an accuracy in [0, 1], or None")
