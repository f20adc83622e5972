"""What a search may choose from: the keys of a command that have several values."""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from mixerlab.config.postponed import GROUPS

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LUCK = ("seed", "task.data_seed", "task.map_seed")  # keys by which runs differ only by luck


def split(overrides: Iterable[Override]) -> tuple[list[str], list[Override]]:
    """The overrides with one value, as text, and the others."""
    fixed, searched = [], []
    for override in overrides:
        if not override.is_sweep_override():
            fixed.append(str(override.input_line))
        elif isinstance(override.value(), IntervalSweep) or len(values := _values(override)) > 1:
            searched.append(override)
        else:
            fixed += [f"{override.get_key_element()}={value}" for value in values]
    for override in searched:
        if override.key_or_group in LUCK:
            raise ValueError(
                f"{override.input_line}: a search would choose the luckiest seed; give it one value, or several seeds"
                " to each run, as in seed=[0,1]"
            )
    if not searched:
        raise ValueError(
            "hydra/sweeper=optuna has no key to search: give one several values, for example"
            " 'optimizer.lr=tag(log,interval(1e-4,1e-2))'"
        )
    return fixed, searched


def first_values(searched: Sequence[Override]) -> list[list[str]]:
    """The first value of each key, for each combination of searched mixers, tasks and so on."""
    choices = []
    for override in searched:
        values = _values(override) if override.key_or_group in GROUPS else _values(override)[:1]
        choices.append([f"{override.get_key_element()}={value}" for value in values])
    return [list(combination) for combination in product(*choices)]


def distribution(override: Override) -> "BaseDistribution":
    """What Optuna may choose from; `ValueError` if it cannot."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    tags: set[str] = set(getattr(value, "tags", ()))
    if tags - {"log"} or (tags and not isinstance(value, IntervalSweep)):
        raise ValueError(f"{override.input_line}: the only tag is log, of an interval: tag(log,interval(1e-4,1e-2))")
    try:
        if isinstance(value, IntervalSweep):
            kind: Any = IntDistribution if type(value.start) is int else FloatDistribution
            return kind(value.start, value.end, log=bool(tags))
        if isinstance(value, RangeSweep):
            values: list[Any] = list(override.sweep_iterator())
            if values and all(type(one) is int for one in values):
                return IntDistribution(min(values), max(values), step=abs(int(value.step)))
        return CategoricalDistribution(_values(override))
    except ValueError as error:
        raise ValueError(f"{override.input_line}: {error}") from error


def _values(override: Override) -> list[Any]:
    """Those of a choice or a range, as text for an override; of an interval its start."""
    value: Any = override.value()
    return [value.start] if isinstance(value, IntervalSweep) else list(override.sweep_string_iterator())
