"""What a search may choose from: the keys of a command that have several values."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig

from mixerlab.config.postponed import GROUPS
from mixerlab.config.values import is_whole_number
from mixerlab.sweeps.launch.cells import ALL_SETTINGS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

# Keys by which runs differ only by luck, and what to write in place of a search.
_LUCK = {
    "seed": "give every run all of them, as in seed=[0,1], to search for the best mean",
    "task.data_seed": "give it one value",
    "task.map_seed": "give it one value",
}


@dataclass(frozen=True)
class Space:
    """The overrides of a command for a search.

    Attributes:
        fixed: those with a single value.
        searched: the others.
        distributions: what Optuna may choose from, by key.
    """

    fixed: list[str]
    searched: list[Override]
    distributions: dict[str, "BaseDistribution"]

    def first_values(self) -> list[list[str]]:
        """The first value of each key, for each combination of searched mixers, tasks and so on."""
        choices = []
        for override in self.searched:
            values = [str(value) for value in _values(override)]
            if override.key_or_group not in GROUPS:
                del values[1:]
            choices.append([f"{override.get_key_element()}={value}" for value in values])
        return [[*self.fixed, *combination] for combination in product(*choices)]

    def check_whole_numbers(self, configs: Sequence[DictConfig]) -> None:
        """ValueError for a key that takes whole numbers only, in any of these configs, and has other values."""
        for override in self.searched:
            if not any(is_whole_number(cfg, override.key_or_group) for cfg in configs):
                continue
            refusal = f"{override.input_line}: {override.key_or_group} takes whole numbers only"
            value = override.value()
            if isinstance(value, IntervalSweep) and type(value.start) is not int:
                key, _, interval = str(override.input_line).partition("=")
                raise ValueError(f"{refusal}, and an interval has fractions; write '{key}=int({interval})'")
            if not isinstance(value, IntervalSweep):
                others = [str(one) for one in override.sweep_iterator() if one is not None and type(one) is not int]
                if others:
                    raise ValueError(f"{refusal}, not {', '.join(others)}")


def space_of(overrides: Sequence[Override]) -> Space:
    """Raises ValueError: there is nothing to search, or something that a search cannot have."""
    fixed, searched = [], []
    for override in overrides:
        values = [] if not override.is_sweep_override() else _values(override)
        if not override.is_sweep_override():
            fixed.append(str(override.input_line))
        elif len(values) == 1 and not isinstance(override.value(), IntervalSweep):
            fixed.append(f"{override.get_key_element()}={values[0]}")
        else:
            searched.append(override)
    if ALL_SETTINGS in fixed:
        raise ValueError(f"hydra/sweeper=optuna searches one setting of a task, not {ALL_SETTINGS}")
    for override in searched:
        if (instead := _LUCK.get(override.key_or_group)) is not None:
            raise ValueError(f"{override.input_line}: a search would choose the luckiest seed; {instead}")
    if not searched:
        raise ValueError(
            "hydra/sweeper=optuna has no key to search: give one several values, for example"
            " 'optimizer.lr=tag(log,interval(1e-4,1e-2))'"
        )
    return Space(fixed, searched, {override.get_key_element(): distribution(override) for override in searched})


def distribution(override: Override) -> "BaseDistribution":
    """What Optuna may choose from; ValueError for what it cannot."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    tags: set[str] = set(getattr(value, "tags", ()))
    if tags - {"log"} or (tags and not isinstance(value, IntervalSweep)):
        raise ValueError(f"{override.input_line}: the only tag is log, of an interval, as in tag(log,interval(1,8))")
    try:
        if isinstance(value, IntervalSweep):
            assert value.start is not None and value.end is not None  # the grammar wants both
            if type(value.start) is int:
                return IntDistribution(value.start, int(value.end), log=bool(tags))
            return FloatDistribution(value.start, value.end, log=bool(tags))
        numbers = sorted(value.range()) if isinstance(value, RangeSweep) else []
        if numbers and all(type(number) is int for number in numbers):
            return IntDistribution(numbers[0], numbers[-1], step=abs(value.step))
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    except ValueError as error:
        raise ValueError(f"{override.input_line}: {error}") from error


def _values(override: Override) -> list[Any]:
    """Those of a choice or a range, as text for an override; of an interval its start."""
    value: Any = override.value()
    return [value.start] if isinstance(value, IntervalSweep) else list(override.sweep_string_iterator())
