"""What building a mixer must leave as it was for everyone else in the process: global generators.

A constructor that calls `torch.manual_seed` gives all seeds the same initial values, of itself and of what is built
behind it: a table then has one model as often as it has seeds.
"""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from mixerlab.records.errors import RefusedMixer
from mixerlab.training.population import seeded


def check_construction(make: Callable[[], nn.Module]) -> None:
    """Raises RefusedMixer if `make` seeds a global generator, or shares its parameters.

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


def _drawn_behind(make: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, dict[str, int]]:
    """What `make` gives with this seed, and what each global generator gives next."""
    with seeded(seed):
        return make(), {
            "torch": int(torch.randint(2**63 - 1, ())),
            "numpy": int(np.random.randint(2**63 - 1)),  # noqa: NPY002
            "random": random.getrandbits(63),
        }
