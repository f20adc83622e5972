"""Random numbers: seeds of initial values, and a generator for each replica of those that run one after another.

So what a replica draws depends on its seed and its steps, and not on the other replicas. Under `vmap` there is no such
way: `randomness="different"` draws one tensor for all replicas.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_STREAM = 1  # of a seed: initial values and the order of rows come from other streams


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators of PyTorch (on the CPU), NumPy and Python start from `seed`, from 0 to 2^32 - 1.

    Afterwards they are as they were before.
    """
    # NumPy's legacy generator, because that is the one a mixer may draw from without having made one.
    of_numpy, of_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` also seeds those of GPUs
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)


def generator_of(seed: int, device: torch.device) -> torch.Generator:
    """The generator of a replica at the start of its training."""
    (state,) = np.random.SeedSequence(seed, spawn_key=(_STREAM,)).generate_state(1)
    return torch.Generator(device).manual_seed(int(state))


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Within it, `generator` stands in for the default generator of its device, also while a CUDA graph is captured.

    A graph can only be captured with generators that are registered with it (`Captured`).
    """
    if generator.device.type == "cuda":
        default = torch.cuda.default_generators[generator.device.index]
        usual = default.graphsafe_get_state()
        default.graphsafe_set_state(generator)  # from here they share one state
        try:
            yield
        finally:
            default.graphsafe_set_state(usual)
    else:
        before = torch.get_rng_state()
        torch.set_rng_state(generator.get_state())
        try:
            yield
        finally:
            generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)


def copy_of(generator: torch.Generator) -> torch.Generator:
    """Another generator in the same state."""
    copied = torch.Generator(generator.device)
    copied.set_state(generator.get_state())
    return copied
