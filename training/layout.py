"""Which columns of a population's tensor belong to which parameter of its model, and how each is optimised."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor, nn

HEAD = "head.weight"  # of the output layer


class Rule(StrEnum):
    """How a parameter is optimised."""

    MATRIX = "matrix"  # weight of a hidden nn.Linear, and what `Grouping` adds: Muon
    TABLE = "table"  # embedding, head (by default), and other parameters of two or more axes: Adam, 0.3x learning rate
    GAIN = "gain"  # norms, other gains and biases: Adam, 0.015x learning rate


@dataclass(frozen=True)
class Grouping:
    """Who optimises what the papers leave open, `adam` (Rule.TABLE) or `muon` (Rule.MATRIX).

    Attributes:
        filters: a mixer's parameters of two or more axes that are no linear weights: convolution filters, the
            `A_log` of mamba. Muon takes their axes but the first as one.
        decoder: the two matrices of the auto-encoder's decoder.
        head: the weight of the output layer. It is not cast together with the hidden weights in either case.
    """

    filters: str = "adam"
    decoder: str = "muon"
    head: str = "adam"

    def __post_init__(self):
        for key in ("filters", "decoder", "head"):
            if getattr(self, key) not in ("adam", "muon"):
                raise ValueError(f"optimizer.{key}={getattr(self, key)!r}: choose adam or muon")

    def rule_of(self, name: str, parameter: Tensor, is_linear: bool) -> Rule:
        """The rule of the model's parameter `name`; `is_linear`: it is the weight of an nn.Linear, or marked as one."""
        if parameter.ndim < 2:
            return Rule.GAIN
        if is_linear:
            by = self.head if name == HEAD else self.decoder if name.startswith("decoder.") else "muon"
        else:
            by = self.filters if ".mixer." in name else "adam"
        return Rule.MATRIX if by == "muon" else Rule.TABLE


PAPER = Grouping()  # the reading of the paper that is the default


@dataclass(frozen=True)
class Slot:
    """One parameter's place: columns `start:stop` of the population tensor.

    Attributes:
        is_lowered: whether the population has it in autocast's dtype: the hidden linear weights.
        matrices: rows and columns of the matrices that it holds one behind the other, for Rule.MATRIX.
        decays: whether it has weight decay; not with `_no_weight_decay` or a weight decay of 0 in `_optim`.
        lr: its own learning rate, whatever that of its replica is; of `_optim`. A weight decay goes by the replica's.
    """

    name: str
    shape: torch.Size
    rule: Rule
    start: int
    is_lowered: bool
    matrices: tuple[tuple[int, int], ...]
    decays: bool
    lr: float | None

    @classmethod
    def of(cls, name: str, parameter: Tensor, rule: Rule, start: int, is_lowered: bool) -> Self:
        """As a parameter's marks say: `mixers.base.split_rows` and `as_matrix`, and those of public code.

        These are `_no_weight_decay` (mamba, flash-linear-attention) and `_optim`, a dict with `lr` and `weight_decay`
        (S4, Hyena).
        """
        whole = (parameter.shape[0], math.prod(parameter.shape[1:])) if rule is Rule.MATRIX else ()
        matrices = getattr(parameter, "_matrices", (whole,)) if whole else ()
        own = getattr(parameter, "_optim", None) or {}
        decays = not getattr(parameter, "_no_weight_decay", False) and own.get("weight_decay") != 0
        return cls(name, parameter.shape, rule, start, is_lowered, matrices, decays, own.get("lr"))

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)


class Layout:
    """The columns of every parameter of `model`, grouped by rule; same-shaped matrices stand together.

    Among those they keep the model's order, but for the layers that a module names in an attribute
    `input_projections`: their weights stand side by side in that order, so that `kernels.fused.join_rows` joins those
    of one shape without a copy. Hidden linear weights stand first among the matrices: `lowered`, a slice.

    Raises:
        ValueError: a parameter that is not float32.
    """

    def __init__(self, model: nn.Module, grouping: Grouping = PAPER):
        self.grouping = grouping
        parameters, places = dict(model.named_parameters()), _sort_keys(model)
        for name, parameter in parameters.items():
            if parameter.dtype != torch.float32:
                kind = str(parameter.dtype).removeprefix("torch.")
                fix = "its real and imaginary parts as two of float32" if parameter.is_complex() else "it as float32"
                raise ValueError(f"{name} is {kind}, and parameters are trained in float32: keep {fix}")
        linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        rules = {n: grouping.rule_of(n, p, n in linear or hasattr(p, "_matrices")) for n, p in parameters.items()}
        lowered = {name for name, rule in rules.items() if rule is Rule.MATRIX and name in linear - {HEAD}}

        def order(name: str) -> tuple:
            return list(Rule).index(rules[name]), name not in lowered, tuple(parameters[name].shape), places[name]

        self.slots: list[Slot] = []
        for name in sorted(parameters, key=order):
            start = self.slots[-1].stop if self.slots else 0
            self.slots.append(Slot.of(name, parameters[name], rules[name], start, name in lowered))
        self.size = self.slots[-1].stop
        self.lowered = slice(0, max((slot.stop for slot in self.slots if slot.is_lowered), default=0))

    def span(self, rule: Rule) -> slice:
        """The columns of all parameters of `rule` (empty where there are none)."""
        slots = [slot for slot in self.slots if slot.rule is rule]
        return slice(slots[0].start, slots[-1].stop) if slots else slice(0, 0)

    def scale(self, table: float, gain: float) -> Tensor:
        """A multiplier for each column, float32 `[P]`: 1 for those of matrices, and these for those of other rules."""
        scale = torch.ones(self.size)
        scale[self.span(Rule.TABLE)], scale[self.span(Rule.GAIN)] = table, gain
        return scale

    def rates(self, scale: Tensor, lr: Sequence[float]) -> Tensor:
        """The multipliers `scale`, `[P]`, of each replica's `lr`; `[R, P]` if a parameter has a rate of its own."""
        own = [(slot, slot.lr) for slot in self.slots if slot.lr is not None]
        scale = scale.repeat(len(lr), 1) if own else scale
        for slot, its_lr in own:
            scale[:, slot.start : slot.stop] = its_lr / torch.tensor(lr)[:, None]
        return scale

    def decaying(self, scale: Tensor) -> Tensor:
        """The multipliers `scale` of the weight decay, `[P]`, zero for the parameters without one."""
        for slot in self.slots:
            if not slot.decays:
                scale[slot.start : slot.stop] = 0
        return scale

    def describe(self) -> str:
        """One line a rule: how many parameters and tensors it has, and their names, `*` for every block."""
        lines = []
        for rule in Rule:
            slots = [slot for slot in self.slots if slot.rule is rule]
            count = sum(slot.stop - slot.start for slot in slots)
            lines.append(f"{rule:>6}: {count:>9,} in {len(slots)}: {names_once(slot.name for slot in slots)}")
        return "\n".join(lines)


def names_once(names: Iterable[str]) -> str:
    """These names of parameters, with `*` for every block."""
    return ", ".join(dict.fromkeys(re.sub(r"^blocks\.\d+\.", "blocks.*.", name) for name in names))


def _sort_keys(model: nn.Module) -> dict[str, tuple[int, int]]:
    """For each parameter what to sort by: its number in the model, and of weights that are joined that of the first."""
    places = {name: (number, 0) for number, (name, _) in enumerate(model.named_parameters())}
    for prefix, module in model.named_modules():
        declared = getattr(module, "input_projections", ())
        children = declared if isinstance(declared, tuple) else ()  # a module of that name declares nothing
        names = [name for child in children if (name := f"{prefix}.{child}.weight".lstrip(".")) in places]
        first = min((places[name][0] for name in names), default=0)
        places |= {name: (first, place) for place, name in enumerate(names)}
    return places
