"""What Hydra refuses of a command, and PyYAML of a file, in words that lead to the fix."""

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

_NO_SETTINGS = ("hydra", "name", "_target_")


def refusal(error: HydraException | MarkedYAMLError) -> str:
    """The message of `error`: Hydra's own, unless it leads astray as its advice to add a misspelt key with `+` does."""
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        return f"{where}{error.problem or error.context}"
    if isinstance(error, OverrideParseException) and "=" not in error.override:
        return f"{error.override}: settings are KEY=VALUE"
    if isinstance(error, MissingConfigException) and error.options:
        what = str(error).splitlines()[0]
        return f"{what}; there are: {', '.join(sorted(error.options))}; --config-dir DIR adds your own"
    cause = error.__cause__
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and isinstance(cause.parent_node, DictConfig):
        outer, dot, _ = str(cause.full_key).rpartition(".")
        keys = [f"{outer}{dot}{key}" for key in map(str, cause.parent_node) if key not in _NO_SETTINGS]
        valid = ", ".join(keys if outer else [*keys, "experiment"]) or "none"  # a choice that leaves no key behind
        return f"unknown key {cause.full_key}; valid keys: {valid}"
    return "\n".join([str(error), *([str(cause)] if isinstance(cause, OmegaConfBaseException) else [])])
