"""Overrides of a sweep that not all of its cells have.

Before a sweep begins, Hydra composes a config of everything that the command gives as a single value, with the default
task and mixer. It would refuse `task=icr,sc task.num_tokens_to_copy=8`, since its `icr` has no such key. As a choice of
one value, `choice(8)`, such a key is left to the cells, and `mixerlab.sweeps.launch.cells` says which of them have it.
"""

from collections.abc import Sequence

# Groups of which a sweep may choose several entries.
GROUPS = ("mixer", "task", "optimizer", "schedule")


def postponed(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command; in a sweep, the keys of groups that it varies are choices of one value."""
    if not {"-m", "--multirun"} & set(arguments):
        return list(arguments)
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed = {}
    for argument in arguments:
        if not argument.startswith("-"):
            try:
                parsed[argument] = parser.parse_override(argument)
            except HydraException:
                continue  # which Hydra says; or the value of an option, such as the folder of --config-dir
    varied = {override.get_key_element() for override in parsed.values() if override.is_sweep_override()}
    if any(override.get_key_element() == "experiment" for override in parsed.values()):
        single = {override.get_key_element() for override in parsed.values() if not override.is_sweep_override()}
        varied |= set(GROUPS) - single

    def leave_to_cells(argument: str) -> bool:
        override = parsed.get(argument)
        if override is None or override.type is not OverrideType.CHANGE or override.is_sweep_override():
            return False
        if override.value() is None:  # Hydra has no choice of null
            return False
        group, dot, _ = override.get_key_element().partition(".")
        return bool(dot) and group in GROUPS and group in varied

    choices = {
        argument: "{}=choice({})".format(*argument.split("=", 1)) for argument in parsed if leave_to_cells(argument)
    }
    return [choices.get(argument, argument) for argument in arguments]
