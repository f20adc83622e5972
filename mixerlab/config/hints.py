"""What Hydra refuses of a command, and PyYAML of a file, in words that lead to the fix."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException, InstantiationException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from mixerlab.config.hybrid import is_hybrid, key_of_layer
from mixerlab.config.postponed import GROUPS

_NO_SETTINGS = ("hydra", "name", "_target_")
_CONFIG_DIR = "--config-dir DIR"
_QUOTED = """'task.setting="a=b"'"""
# What Hydra says of a sweep without -m.
_SEVERAL = re.compile(r"Ambiguous value for argument '(.+)'$|Sweep parameters '(.+)' requires --multirun$", re.M)
_LISTS = ("optimizer.lr", "seed", "mixer.layers")  # keys of which one run may have several values
_ONE_NAME = ("mixer", "experiment")  # config.yaml makes a name of them; the other groups may also be a list of yamls


def refusal(error: HydraException | MarkedYAMLError, config_dir: str = _CONFIG_DIR) -> str:
    """The message of `error`: Hydra's own, unless it leads astray as its advice to add a misspelt key with `+` does.

    Args:
        config_dir: how the user gives a folder of their own.
    """
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        return f"{where}{error.problem or error.context}"
    if isinstance(error, OverrideParseException):
        if error.override.startswith(","):
            return f"{error.override} begins with a comma: leave out the space before it, or quote the whole setting"
        if "=" not in error.override:
            return f"{error.override}: settings are KEY=VALUE"
        if error.override.endswith(","):
            return f"{error.override} ends with a comma: remove it or, if a space follows it, quote the whole setting"
        first, *others = str(error).splitlines()
        if others and " while evaluating " in others[0]:  # a function of Hydra's refuses its arguments: `interval(1)`
            return f"{error.override}: {others[0]}"
        for opening, closing in ("[]", "{}", "()"):
            if error.override.count(opening) != error.override.count(closing):
                return (
                    f"{error.override} has a `{opening}` or a `{closing}` too many: close it or leave it out. If the"
                    f" value has spaces, quote the whole setting; if it has such a sign, quote it, as in {_QUOTED}"
                )
        if another := re.search(r"\s([\w.]+=)", error.override):
            return f"{error.override}: {another[1]} begins another setting: quote each setting by itself"
        why = "" if error.override in first else f" ({first})"
        return f"{error.override} cannot be read{why}: settings are KEY=VALUE; quote its value, as in {_QUOTED}"
    if several := _SEVERAL.match(str(error)):
        override = several[1] or several[2]
        return f"{override} has several values: give one, or -m for a sweep over them{_without_sweep(override)}"
    if isinstance(error, MissingConfigException) and error.options:
        what = str(error).splitlines()[0]
        place = f", as {error.missing_cfg_file}.yaml in that folder" if error.missing_cfg_file else ""
        return f"{what}; there are: {', '.join(sorted(error.options))}; {config_dir} adds your own{place}"
    cause = error.__cause__
    if isinstance(error, InstantiationException) and str(cause).startswith("hydra."):  # a sweeper or launcher of ours
        return str(cause)
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, DictConfig):
        outer, dot, _ = str(cause.full_key).rpartition(".")
        keys = [f"{outer}{dot}{key}" for key in map(str, cause.parent_node) if key not in _NO_SETTINGS]
        valid = ", ".join(keys if outer else [*keys, "experiment"]) or "none"  # a choice that leaves no key behind
        there = [] if outer else _keys_named(str(cause.key), cause.parent_node)
        hint = f"there is {', '.join(there)}; " if there and cause.key not in _NO_SETTINGS else ""
        last_parts = [key.rpartition(".")[2] for key in keys]
        if near := get_close_matches(str(cause.key), last_parts, n=1, cutoff=0.65):
            hint = f"did you mean {outer}{dot}{near[0]}? "
        name = cause.parent_node.get("name") if outer in GROUPS else None
        of = f" of {outer}={name}" if name else ""  # a sweep may have several mixers, and only this one refuses the key
        grows = "; another argument of its class can be set once its yaml has it" if outer in GROUPS else ""
        if outer == "mixer" and is_hybrid(cause.parent_node):
            grows = f"; {key_of_layer(cause.key)}"
        return f"unknown key {cause.full_key}; {hint}valid keys{of}: {valid}{grows}"
    return "\n".join([str(error), *([str(cause)] if isinstance(cause, OmegaConfBaseException) else [])])


def _keys_named(name: str, config: DictConfig) -> list[str]:
    """The keys of this name in the groups of a config: `optimizer.lr` for `lr`."""
    groups = cast(dict[str, Any], OmegaConf.to_container(config))
    return [f"{group}.{name}" for group, part in groups.items() if isinstance(part, dict) and name in part]


def check_one_run(override: str) -> None:
    """Raises ValueError for an option of the command line, and for an override that describes a sweep."""
    if override.startswith("-"):
        raise ValueError(f"{override} is an option of the command line: here only settings KEY=VALUE can be given")
    try:
        is_sweep = OverridesParser.create().parse_override(override).is_sweep_override()
    except HydraException:
        return  # Hydra will refuse it with a message of its own
    if is_sweep:
        raise ValueError(
            f"{override} describes a sweep, which `mixerlab -m` runs: here give one value for each key"
            f"{_without_sweep(override)}"
        )


def _without_sweep(override: str) -> str:
    """How one run takes the commas of `seed=0,1` or `results_dir=a,b`, as the end of a message; empty if it cannot."""
    key, _, values = override.partition("=")
    if key in _LISTS and not values.endswith(")"):  # `seed=choice(0,1)` is a sweep in any case
        return f", or a list: '{key}=[{values}]'"
    return "" if key in GROUPS or values.endswith(")") else "; quote the value if the comma belongs to it"


def check_choices(overrides: Iterable[str], config_dir: str = _CONFIG_DIR) -> None:
    """To call before Hydra composes: of `mixer=3` it says what its classes would have taken, not what to write.

    Options of the command line may stand among the overrides.

    Raises:
        ValueError: the choice of a group is no name, or is that of a file; or one is removed that config.yaml needs.
    """
    parser = OverridesParser.create()
    for text in overrides:
        if text.startswith("-"):
            continue
        try:
            override = parser.parse_override(text)
        except HydraException:
            continue  # the value of an option, or what Hydra will refuse with a message of its own
        group = override.key_or_group
        folder = files("mixerlab.conf").joinpath(*group.split("/"))
        if group == "layers" or not folder.is_dir():
            continue
        names = sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if ".yaml" in file.name)
        there_are = f"there are: {', '.join(names)}; {config_dir} adds your own"
        if override.is_delete():
            if group in _ONE_NAME:
                raise ValueError(f"{text}: {group} cannot be removed; {there_are}")
            continue
        value: Any = override.value()
        for one in value.list if isinstance(value, ChoiceSweep) else [value]:
            if group in GROUPS and isinstance(one, str) and one.endswith((".yaml", ".yml")):
                raise ValueError(f"{group}={one} names a file: write {group}={Path(one).stem}")
            if (why := _no_name(group, one)) is not None:
                written = Override._get_value_element_as_str(one)
                written = written.lower() if isinstance(one, bool) else written
                raise ValueError(f"{group}={written} {why}; {there_are}")


def unresolved(error: OmegaConfBaseException) -> str:
    """What is wrong with a value that is ???, or `${nothing}`."""
    where = f"{error.full_key}: " if error.full_key else ""
    return f"{where}{str(error).splitlines()[0]}"


def _no_name(group: str, value: object) -> str | None:
    """Why a choice is not the name of a yaml of this group; None if it may be."""
    if value is None:
        return "names nothing"
    if isinstance(value, bool):
        return "is a truth value, not a name"
    if isinstance(value, int | float):
        return "is a number, not a name"
    if isinstance(value, list):
        if group in _ONE_NAME:
            return "is a list, not a name"
        if not all(isinstance(name, str) for name in value):
            return "is a list of other things than names"
    return None
