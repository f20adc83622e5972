"""What Hydra refuses of a command, OmegaConf of a value and PyYAML of a file, in one line that leads to the fix."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, cast

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from mixerlab.config.hybrid import is_hybrid
from mixerlab.records.identity import flatten
from mixerlab.records.schema import CHOICES

_REFUSALS = (HydraException, OmegaConfBaseException, YAMLError)
# What Hydra says without a type of its own: of `mixer=a,b` without -m; of `mixer=3`, and of a list or none, which
# conf/config.yaml has in an interpolation.
_SEVERAL = ("Ambiguous value for argument", "Sweep parameters")
_NO_NAME = ("Config group override must be a string", "Error resolving interpolation '${experiment}_${")


class UnknownKey(ValueError):
    """A key that the config does not have, and the one that was probably meant, if one is alike."""

    def __init__(self, message: str, key: str, meant: str | None = None):
        super().__init__(message)
        self.key, self.meant = key, meant


@contextmanager
def one_line_refusals() -> Iterator[None]:
    """Within the block, what Hydra, OmegaConf and PyYAML refuse becomes a ValueError with its message."""
    try:
        yield
    except (ValueError, *_REFUSALS) as error:
        raise ValueError(_refusal(error)) from error


def _refusal(error: Exception) -> str:
    """The message of one of _REFUSALS or of a ValueError: its own in one line, unless that leads astray."""
    cause = error.__cause__
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        return f"{where}{error.problem or error.context}"
    if str(error).startswith(_SEVERAL):
        _, override, _ = str(error).split("'", 2)
        return f"{override} has several values: add -m for a run of each; a list is 'optimizer.lr=[1e-2,1e-3]'"
    if str(error).startswith(_NO_NAME):
        return f"{', '.join(CHOICES)}, trainer, logger and experiment each take a name that --help lists: mixer=attn"
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override} cannot be read: settings are KEY=VALUE, or KEY=A,B with no choice left empty. Quote the"
            """ whole setting if it has spaces, and quote a value that has signs, as in 'task.setting="a=b"'"""
        )
    if isinstance(error, MissingConfigException) and error.options:
        file, options = error.missing_cfg_file, ", ".join(sorted(error.options))
        own = f"--config-dir DIR (in Python config_dir=DIR) adds your own, as {file}.yaml in that folder"
        near = get_close_matches(str(file).rpartition("/")[2], error.options, n=1)
        return f"there is no {file}: {f'did you mean {near[0]}? ' if near else ''}choose {options}; {own}"
    if unknown := unknown_key(error):
        return str(unknown)
    if isinstance(error, MissingMandatoryValue):  # a value that is ???
        return f"{error.full_key} has no value: give {error.full_key}=..."
    if isinstance(error, OmegaConfBaseException):  # `${nothing}`
        return f"{f'{error.full_key}: ' if error.full_key else ''}{str(error).splitlines()[0]}"
    if isinstance(error, _REFUSALS):
        return " ".join(f"{error} {cause or ''}".split())
    return str(error)


def unknown_key(error: Exception) -> UnknownKey | None:
    """What to say of a key that Hydra or OmegaConf does not know, if `error` is that; Hydra would advise to add it.

    The key that was meant may stand anywhere.
    """
    cause = error.__cause__
    if not isinstance(cause, ConfigAttributeError | ConfigKeyError) or not isinstance(cause.parent_node, DictConfig):
        return None
    key, parent = str(cause.full_key), cause.parent_node
    outer, dot, name = key.rpartition(".")
    if outer and not parent:  # Hydra has put an empty mapping in the place of null
        whole = f"set it as a whole, as in '{outer}={{{name}: VALUE}}'"
        return UnknownKey(f"{key} cannot be set, as {outer} has no keys: {whole}", key)
    own = {str(other): f"{outer}{dot}{other!s}" for other in parent if other not in ("hydra", "name", "_target_")}
    tree = cast(dict[str, Any], OmegaConf.to_container(parent._get_root()))
    anywhere = [other for other in flatten(tree) if other.endswith(f".{name}") and not other.startswith("hydra.")]
    alike = [own[other] for other in get_close_matches(name, own, n=1, cutoff=0.7)]
    meant = min(anywhere, key=lambda other: other.count("."), default=None) or next(iter(alike), None)
    hint = f"did you mean {meant}? " if meant else ""
    grows = "; another argument of its class can be set once its yaml has it" if outer in CHOICES else ""
    if outer == "mixer" and is_hybrid(parent):
        grows = f"; a key of a layer is mixer.options.<layer>.{name}, with layers counted from 0"
    if choice := {"hydra.launcher": "processes", "hydra.sweeper": "optuna"}.get(outer):
        grows = f"; another choice has others, such as {outer.replace('.', '/')}={choice}"
    return UnknownKey(f"unknown key {key}; {hint}valid keys: {', '.join(own.values()) or 'none'}{grows}", key, meant)
