"""Overrides of a sweep that not all of its cells have.

Before a sweep begins, Hydra composes a config of everything that the command gives as a single value, with the default
task and mixer. It would refuse `task=icr,sc task.num_tokens_to_copy=8`, since its `icr` has no such key. As a choice of
one value, `choice(8)`, a key of a group is left to the cells, and `mixerlab.sweeps.launch.cells` says which of them
have it.
"""

from collections.abc import Sequence

from mixerlab.records.schema import CHOICES


def postponed(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command; in a sweep, each key of a group that has one value is a choice of it."""
    if not {"-m", "--multirun"} & set(arguments):
        return list(arguments)
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()

    def left_to_cells(argument: str) -> str:
        key, _, value = argument.partition("=")
        if not key.startswith(tuple(f"{group}." for group in CHOICES)):
            return argument
        (override,) = parser.parse_overrides([argument])  # which refuses as Hydra does
        is_left = not override.is_sweep_override() and override.value() not in (None, "")  # Hydra has no such choices
        return f"{key}=choice({value})" if is_left else argument

    return [left_to_cells(argument) for argument in arguments]
