"""What building a mixer must leave as it was for everyone else in the process: global generators, settings of PyTorch.

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
    """Raises RefusedMixer if `make` seeds a global generator, or trains under another setting than mixerlab does.

    What draws from a generator of its own, or seeds a global one and sets it back (`torch.random.fork_rng`), may.
    """
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        drawn = [_drawn_behind(make, seed) for seed in (0, 1)]
        settings = {
            f"torch.set_default_dtype({torch.get_default_dtype()})": torch.get_default_dtype() is not torch.float32,
            "torch.set_grad_enabled(False)": not torch.is_grad_enabled(),
        }
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
    if same := [name for name, value in drawn[0].items() if drawn[1][name] == value]:
        raise RefusedMixer(
            f"its constructor seeds the global generator of {' and '.join(same)}, so that all seeds start with the same"
            " values: leave that away, or draw within torch.random.fork_rng() or from a generator of your own"
        )
    if found := [call for call, is_set in settings.items() if is_set]:
        raise RefusedMixer(
            f"{found[0]} is in force when it is built, for all that this process computes: leave that away, and give"
            " dtype=... or use torch.no_grad() where it is needed"
        )


def _drawn_behind(make: Callable[[], nn.Module], seed: int) -> dict[str, int]:
    """What each global generator gives next, once `make` was called with this seed."""
    with seeded(seed):
        make()
        return {
            "torch": int(torch.randint(2**63 - 1, ())),
            "numpy": int(np.random.randint(2**63 - 1)),  # noqa: NPY002
            "random": random.getrandbits(63),
        }
