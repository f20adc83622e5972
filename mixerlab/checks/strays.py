"""Tensors and layers that a mixer keeps where PyTorch does not look, such as layers in a Python list.

PyTorch finds what is a parameter, a buffer or a layer of a module. Anything else is not trained, saved or moved to a
GPU: such a mixer trains, and `mixerlab.load` gives another model than the one that was scored.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mixerlab.mixers.base import SequenceMixer
from mixerlab.records.errors import INSTALLED
from mixerlab.training.population import seeded

_REGISTERED = {"_parameters", "_buffers", "_modules"}


class Stray(NamedTuple):
    """A tensor that is neither a parameter nor a buffer of a mixer, by its `name` in it, as in `outs[0].weight`.

    `is_lost`: a run refuses it. That is any tensor of a layer that is not registered, a tensor that is trained, and one
    that the user's own code set: it may be random. Others may be caches of an installed package's layers, such as the
    tables of a rotary embedding, which the layer makes again.
    """

    name: str
    is_lost: bool

    def __str__(self) -> str:
        return (
            f"{self.name} is no parameter or buffer, so it is not trained, saved or moved to a GPU: keep layers in an"
            " nn.ModuleList, tensors that train in an nn.Parameter or nn.ParameterList, others by register_buffer"
        )


def strays(make: Callable[[], nn.Module]) -> Iterator[Stray]:
    """The strays in the attributes of a mixer that `make` builds, and of all its layers, also in lists, tuples, dicts.

    None are what is registered elsewhere in the mixer, as a list may name layers again; and, in attributes themselves,
    tensors that are the same for every seed, which a population treats as buffers, and those that a hook before forward
    makes anew, as `torch.nn.utils.weight_norm` and `spectral_norm` do.
    """
    mixer, other = (_built(make, seed) for seed in (0, 1))
    others = dict(other.named_modules())
    registered = {id(one) for one in (*mixer.modules(), *mixer.parameters(), *mixer.buffers())}
    for prefix, module in mixer.named_modules():
        for attribute in sorted(vars(module).keys() - _REGISTERED):
            value = vars(module)[attribute]
            if isinstance(value, Tensor) and (
                _is_constant(value, getattr(others.get(prefix), attribute, None)) or _is_remade(module, attribute)
            ):
                continue
            for name, held in _held(value, f"{prefix}.{attribute}".removeprefix("."), ()):
                if id(held) in registered:
                    continue
                if isinstance(held, nn.Module):
                    yield from (Stray(f"{name}.{inner}", is_lost=True) for inner in held.state_dict())
                else:  # one with a `grad_fn` is computed from others: from registered ones, or they are named too
                    yield Stray(name, is_lost=_is_users(module) or (held.requires_grad and held.is_leaf))


def _built(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with seeded(seed):
        return make()


def _is_constant(value: Tensor, other: Any) -> bool:
    return not value.requires_grad and isinstance(other, Tensor) and torch.equal(value, other)


def _is_remade(module: nn.Module, attribute: str) -> bool:
    """Whether a hook before the module's forward puts another tensor in its place, whatever the input is."""
    before = vars(module)[attribute]
    for hook in module._forward_pre_hooks.values():
        with suppress(Exception):  # of a hook that reads the input
            hook(module, ())
    return vars(module).get(attribute) is not before


def _held(value: Any, name: str, outer: tuple[int, ...]) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """The tensors and modules in a value, with their names; `outer` are the containers around it, by `id`."""
    if isinstance(value, Tensor | nn.Module):
        yield name, value
    elif isinstance(value, Mapping | list | tuple) and id(value) not in outer:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _held(item, f"{name}[{key!r}]", (*outer, id(value)))


def _is_users(module: nn.Module) -> bool:
    """Whether a module is a mixer, or of a class outside installed packages."""
    file = getattr(sys.modules.get(type(module).__module__), "__file__", None) or ""
    return isinstance(module, SequenceMixer) or not INSTALLED & set(Path(file).parts)
