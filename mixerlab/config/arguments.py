"""The class that a config names, and whether the config's keys fit the signature that takes them."""

import inspect
import json
import math
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, Union, get_args, get_origin

from mixerlab.config.project import projects_in_use
from mixerlab.records.code_version import file_in
from mixerlab.records.errors import users_code, with_place
from mixerlab.records.identity import present

_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", types.NoneType: "null"}
_LISTS, _GROUPS = (list, tuple, Sequence), (dict, Mapping)
_NAMES: dict[Any, str] = _PLAIN | dict.fromkeys(_LISTS, "a list") | dict.fromkeys(_GROUPS, "a group of keys")


def class_of(target: object) -> type:
    """The class that a config's `_target_` names; ValueError if it cannot be imported or is no class."""
    module_name, _, name = target.rpartition(".") if isinstance(target, str) else ("", "", "")
    if module_name in ("", "__main__") or "/" in module_name:
        raise ValueError(f"_target_={target!r} must be the dotted name of a class, such as mixers.ema.MovingAverage")
    module = _imported(module_name)
    found = getattr(module, name, None)
    if not isinstance(found, type):
        inside = found if isinstance(found, ModuleType) else module
        own = f"{inside.__name__}."  # what a package takes from its modules is its own
        named = [(key, value) for key, value in vars(inside).items() if isinstance(value, type)]
        classes = [key for key, value in named if f"{value.__module__}.".startswith(own)]
        raise ValueError(f"_target_={target} is no class; classes in {inside.__name__}: {', '.join(classes) or 'none'}")
    return found


def subclass_of(base: type, target: object, label: str) -> type:
    """The class of a `_target_` (`class_of`), which must be a subclass of `base`; messages begin with `label`."""
    try:
        found = class_of(target)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from error
    if not issubclass(found, base):
        raise ValueError(f"{label}: {found.__name__} must be a subclass of {base.__module__}.{base.__name__}")
    return found


def _imported(name: str) -> ModuleType:
    """The module; ValueError also if the project in use has a file for it, and another one was imported before."""
    try:
        with users_code():
            module = import_module(name)
    except Exception as error:  # of the user's code
        message = f"{name} cannot be imported: {with_place(error)}"
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and f"{name}.".startswith(f"{absent}.") and (projects := projects_in_use()):
            package = sys.modules.get(absent.rpartition(".")[0])  # another one of its name may hide the user's
            places = getattr(package, "__path__", [package]) if package else projects  # a module has no folders
            message += f"; looked in {' and '.join(map(str, places))}"
        raise ValueError(message) from error
    imported = getattr(module, "__file__", None)
    if imported and (file := file_in(projects_in_use(), name.split("."))) and not file.samefile(imported):
        raise ValueError(f"{name} is {file}, and this process has imported {imported}: restart Python")
    return module


def check_arguments(
    group: str, function: Callable, args: Mapping[str, Any], supplied: Collection[str] = (), yaml: str = "its yaml"
) -> None:
    """Raises ValueError unless `function` takes every key of `args`, with a value of the annotated type, and no other.

    Annotations that are not plain types are not checked. A run gives the keys in `supplied`, the file that messages
    call `yaml` the others.
    """
    parameters = _signature(function).parameters
    prefix = f"{group}." if group else ""
    taken = {key: value for key, value in parameters.items() if key not in supplied}
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
    for key, value in args.items():
        if key in taken:
            wanted = taken[key].annotation
            if not _fits(value, wanted):
                raise ValueError(f"{prefix}{key}={value!r} must be {_described(wanted)}")
            if wanted is inspect.Parameter.empty and value in ("yes", "no", "on", "off"):
                raise ValueError(f"{prefix}{key}={value!r} is a string, which counts as true: write true or false")
        elif key in supplied:
            raise ValueError(f"{prefix}{key}={value!r}: a run gives {function.__name__} its {key}: leave this key out")
        elif not takes_all:
            names = ", ".join(taken) or "nothing"
            raise ValueError(f"unknown key {prefix}{key}={value!r}; {function.__name__} takes: {names}")
    if not takes_all and (lacking := [key for key in supplied if key not in parameters]):
        raise ValueError(f"{group}: {function.__name__} must take {', '.join(lacking)}, which a run gives it")
    for key, parameter in taken.items():
        is_one = parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_one and parameter.default is parameter.empty and key not in args:
            fix = f"add `{key}: <value>` to {yaml}, unless ~{prefix}{key} took it out"
            raise ValueError(f"{prefix}{key} is missing ({function.__name__} takes it): {fix}")


def defaults_of(function: Callable, args: Collection[str]) -> dict[str, Any]:
    """The values that a config could give, and that `function` takes beside `args`, less those that count as absent."""
    defaults = {name: parameter.default for name, parameter in _signature(function).parameters.items()}
    plain = {name: value for name, value in defaults.items() if name not in args and _is_plain(value)}
    return json.loads(json.dumps(present(plain)))  # a tuple becomes a list, and a member of an enumeration its number


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return isinstance(value, int | str)


def _signature(function: Callable) -> inspect.Signature:
    """The signature, with annotations that are strings evaluated, unless one of them cannot be."""
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, TypeError, SyntaxError):  # a name that only type checkers import
        return inspect.signature(function)


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value from a config has the annotated type; of a list, what is in it may be anything."""
    kind, args = get_origin(wanted) or wanted, get_args(wanted)
    if kind in (Union, types.UnionType):
        return any(_fits(value, one) for one in args)
    if kind is Literal:
        return any(type(value) is type(one) and value == one for one in args)  # 1 is not true
    if kind in _LISTS:
        return isinstance(value, list | tuple)
    if kind in _GROUPS:
        return isinstance(value, Mapping)
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind if kind in _PLAIN else True


def _described(wanted: Any) -> str:
    kind, args = get_origin(wanted) or wanted, get_args(wanted)
    if kind in (Union, types.UnionType):
        return " or ".join(map(_described, args))
    if kind is Literal:
        return " or ".join(map(repr, args))
    return _NAMES.get(kind, "a value of another type")
