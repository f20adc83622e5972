"""What a mixer's constructor must leave alone, and where it must keep layers and tensors.

One that calls `torch.manual_seed` gives all seeds the same initial values, also of what is built behind it. Layers in
a Python list are not trained, saved or moved to a GPU: `mixerlab.load` would give another model than was scored.
"""

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixerlab.mixers.base import SequenceMixer
from mixerlab.records.errors import INSTALLED, RefusedMixer
from mixerlab.training.population import seeded

_REGISTERED = {"_parameters", "_buffers", "_modules"}


def check_construction(make: Callable[[], nn.Module], all_strays: bool = False) -> None:
    """Raises RefusedMixer if `make` seeds a global generator, shares its parameters, or has `_strays` that are lost.

    What draws from a generator of its own, or seeds a global one and sets it back (`torch.random.fork_rng`), may.
    """
    (one, one_draws), (other, other_draws) = (_drawn_behind(make, seed) for seed in (0, 1))
    if same := [name for name, value in one_draws.items() if other_draws[name] == value]:
        raise RefusedMixer(
            f"its constructor seeds the global generator of {' and '.join(same)}, so that all seeds start with the same"
            " values: leave that away, or draw within torch.random.fork_rng() or from a generator of your own"
        )
    theirs = {id(parameter) for parameter in other.parameters()}
    if shared := [name for name, parameter in one.named_parameters() if id(parameter) in theirs]:
        raise RefusedMixer(
            f"its constructor gives every mixer the same {shared[0]}, so that blocks, replicas and later models share"
            " it: make it in __init__; model.shared_mixer=true gives all blocks of a model one mixer"
        )
    for name, is_lost in _strays(one, other):
        if is_lost or all_strays:
            raise RefusedMixer(
                f"{name} is no parameter or buffer, so it is not trained, saved or moved to a GPU: keep layers in an"
                " nn.ModuleList, tensors that train in an nn.Parameter or nn.ParameterList, others by register_buffer"
            )


def _drawn_behind(make: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, dict[str, int]]:
    """What `make` gives with this seed, and what each global generator gives next."""
    with seeded(seed):
        return make(), {
            "torch": int(torch.randint(2**63 - 1, ())),
            "numpy": int(np.random.randint(2**63 - 1)),  # noqa: NPY002
            "random": random.getrandbits(63),
        }


def _strays(mixer: nn.Module, other: nn.Module) -> Iterator[tuple[str, bool]]:
    """Tensors in a mixer and its layers, also in lists, tuples, dicts, that are neither parameters nor buffers.

    Each with its name, as in `outs[0].weight`, and whether it is lost, which a run refuses. That is any tensor of a
    layer that is not registered, a tensor that is trained, and one that the user's own code set: it may be random.
    Others may be caches of an installed package's layers, such as the tables of a rotary embedding.

    No strays are what is registered elsewhere in the mixer; and, in attributes themselves, tensors that are the same in
    `other`, of another seed, and those that a hook before forward makes anew, as `torch.nn.utils.weight_norm` does.
    """
    others = dict(other.named_modules())
    registered = {id(one) for one in (*mixer.modules(), *mixer.parameters(), *mixer.buffers())}
    for prefix, module in mixer.named_modules():
        file = getattr(sys.modules.get(type(module).__module__), "__file__", None) or ""
        is_users = isinstance(module, SequenceMixer) or not INSTALLED & set(Path(file).parts)
        for attribute in sorted(vars(module).keys() - _REGISTERED):
            value, same = vars(module)[attribute], getattr(others.get(prefix), attribute, None)
            if isinstance(value, Tensor):
                is_constant = not value.requires_grad and isinstance(same, Tensor) and torch.equal(value, same)
                if is_constant or _is_remade(module, attribute):
                    continue
            for name, held in _held(value, f"{prefix}.{attribute}".removeprefix("."), ()):
                if id(held) in registered:
                    continue
                if isinstance(held, nn.Module):
                    yield from ((f"{name}.{inner}", True) for inner in held.state_dict())
                else:  # one with a `grad_fn` is computed from others: from registered ones, or they are named too
                    yield name, is_users or (held.requires_grad and held.is_leaf)


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
