"""The class that a config names, and whether the config's keys fit the signature that takes them."""

import inspect
import math
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, Union, get_args, get_origin

from mixerlab.config.project import is_module, project_in_use
from mixerlab.records.code_version import file_in, note_import
from mixerlab.records.errors import with_place

_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", types.NoneType: "null"}


def class_of(target: object) -> type:
    """The class that a config's `_target_` names; ValueError if it cannot be imported or is no class."""
    module_name, _, name = target.rpartition(".") if isinstance(target, str) else ("", "", "")
    if not module_name or "/" in module_name:
        raise ValueError(f"_target_={target!r} must be the dotted name of a class, such as mixers.ema.MovingAverage")
    if module_name == "__main__":
        raise ValueError(f"_target_={target}: a class in a script or notebook cannot be a run's: put it in a module")
    try:
        module = import_module(module_name)
    except Exception as error:  # of the user's code
        message = f"{module_name} cannot be imported: {with_place(error)}"
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        if is_absent and (project := project_in_use()) is not None:
            message += f"; looked beside the yamls, in {project}"
        raise ValueError(message) from error
    _check_file(module)
    found = getattr(module, name, None)
    if found is None or isinstance(found, types.ModuleType):
        if is_module(f"{module_name}.{name}"):
            raise ValueError(f"_target_={target} is a module: write {target}.<Class>, the name of a class in it")
        own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module_name]
        classes = ", ".join(value.__name__ for value in own if isinstance(value, type)) or "none"
        raise ValueError(f"{module.__file__ or module_name} has no class {name}; its classes: {classes}")
    if not isinstance(found, type):
        raise ValueError(f"{target} is no class")
    note_import(module_name)
    return found


def _check_file(module: types.ModuleType) -> None:
    """ValueError if the project in use has a file for this module, and another one was imported before."""
    project, imported = project_in_use(), getattr(module, "__file__", None)
    if project is None or imported is None:
        return
    file = file_in([project], module.__name__.split("."))
    if file is not None and not file.samefile(imported):
        raise ValueError(
            f"{module.__name__} is {file}, and this process has imported {imported} under this name: restart Python"
        )


def check_arguments(
    group: str,
    function: Callable,
    given: Mapping[str, Any],
    supplied: Collection[str] = (),
    yaml: str = "its yaml",
) -> None:
    """Raises ValueError unless `function` takes every key of `given`, with a value of the annotated type, and no other.

    Annotations that are not plain types are not checked. Keys in `supplied` are given by the run, not by the user.
    `yaml` is what messages call the file that gives the others.
    """
    try:
        parameters = _signature(function).parameters
    except ValueError as error:  # of some classes written in C
        name = function.__name__
        raise ValueError(f"{group}: {name} does not say what it takes: give a class written in Python") from error
    taken = {key: value for key, value in parameters.items() if key not in supplied}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    for key, value in given.items():
        if key in taken:
            wanted = taken[key].annotation
            if not _fits(value, wanted):
                raise ValueError(f"{group}.{key}={value!r} must be {_described(wanted)}")
        elif key in supplied or not takes_all:
            raise ValueError(
                f"unknown key {group}.{key}={value!r}; {function.__name__} takes: {', '.join(taken) or 'nothing'}"
            )
    if not takes_all and (lacking := [key for key in supplied if key not in parameters]):
        raise ValueError(f"{group}: {function.__name__} must take {', '.join(lacking)}, which a run gives it")
    for key, parameter in taken.items():
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_one and parameter.default is parameter.empty and key not in given:
            raise ValueError(
                f"{group}.{key} is missing, which {function.__name__} takes: add `{key}: <value>` to {yaml}, or give"
                " it a default"
            )


def defaults_of(function: Callable, args: Collection[str]) -> dict[str, Any]:
    """The values that a config could give, and that `function` takes where it gives only `args`."""
    defaults = {name: parameter.default for name, parameter in _signature(function).parameters.items()}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in defaults.items()
        if name not in args and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return isinstance(value, int | str)


def takes_only_whole_numbers(function: Callable, name: str) -> bool:
    """Whether `check_arguments` takes 1 for this argument and refuses 0.5."""
    parameter = _signature(function).parameters.get(name)
    return parameter is not None and _fits(1, parameter.annotation) and not _fits(0.5, parameter.annotation)


def _signature(function: Callable) -> inspect.Signature:
    """The signature, with annotations that are strings evaluated (`from __future__ import annotations`).

    They stay strings if one of them cannot be evaluated, such as a name that only type checkers import.
    """
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return inspect.signature(function)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value from a config has the annotated type; True for annotations that are no plain types."""
    if get_origin(wanted) in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(wanted))
    if get_origin(wanted) is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(wanted))  # 1 is not true
    if _is_list(wanted):
        return isinstance(value, list | tuple) and all(_fits(one, _item(wanted)) for one in value)
    if get_origin(wanted) is tuple:
        items = get_args(wanted)
        return (
            isinstance(value, list | tuple)
            and len(value) == len(items)
            and all(_fits(one, item) for one, item in zip(value, items, strict=True))
        )
    if (get_origin(wanted) or wanted) in (dict, Mapping):
        return isinstance(value, Mapping)
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted if wanted in _NAMES else True


def _is_list(wanted: Any) -> bool:
    """Whether it is a list of any length; a tuple of a certain length is none."""
    is_of_certain_length = get_origin(wanted) is tuple and get_args(wanted) and Ellipsis not in get_args(wanted)
    return (get_origin(wanted) or wanted) in (list, tuple, Sequence) and not is_of_certain_length


def _item(wanted: Any) -> Any:
    """What each item of a list must be."""
    return next(iter(get_args(wanted)), Any)


def _described(wanted: Any) -> str:
    if get_origin(wanted) in (Union, types.UnionType):
        return " or ".join(map(_described, get_args(wanted)))
    if get_origin(wanted) is Literal:
        return f"one of {', '.join(map(repr, get_args(wanted)))}"
    if _is_list(wanted):
        return "a list" if _item(wanted) is Any else f"a list, each {_described(_item(wanted))}"
    if get_origin(wanted) is tuple:
        return f"a list of {len(get_args(wanted))}: {', '.join(map(_described, get_args(wanted)))}"
    if (get_origin(wanted) or wanted) in (dict, Mapping):
        return "a mapping, {key: value}"
    return _NAMES.get(wanted, "a value of another type")
