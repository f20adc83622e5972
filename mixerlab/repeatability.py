"""Whether a model gives the same outputs for the same input; one that does not seems to see the future.

A mixer that stores its last input in a Python list, for instance, gives other outputs when another input came before.
The check of causality compares two calls, and cannot tell that from a leak: what it refuses is looked at once more.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from mixerlab.training.execution import leaving_no_trace
from mixerlab.training.population import Population

KEEPS_STATE = (
    "gives different outputs for the same input: it keeps state between calls. Compute all of forward from x,"
    " parameters and buffers"
)
# Two outputs are the same if they differ by no more than this share of the largest: atomic sums of a GPU differ.
_ROUNDING = 1e-4


class KeepsState(ValueError):
    """The outputs of a mixer depend on its earlier calls."""


def repeats(
    compute: Callable[[Tensor], Tensor], one: Tensor, other: Tensor, *, of_each: float = 0.0, of_largest: float = 0.0
) -> bool:
    """Whether `compute(one)` is the same again with `compute(other)` between the two calls.

    Rounding is allowed: each element may differ by the share `of_each` of it and `of_largest` of the largest.
    """
    with torch.no_grad():
        first, _, second = compute(one), compute(other), compute(one)
    rounding = of_largest * first.abs().max().item()
    return first.shape == second.shape and torch.allclose(first, second, rtol=of_each, atol=rounding, equal_nan=True)


def keeps_state(population: Population, vocab_size: int, length: int) -> bool:
    """Whether two calls with the same tokens differ, with a call with others between them.

    In evaluation mode and float32, with the same random numbers. The population and the state of all random generators
    stay as they were.
    """
    was_training, saved = population.model.training, copy.deepcopy(population.state_dict())
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randint(vocab_size, (2, len(population), 2, length), generator=generator).to(population.device)

    def logits(tokens: Tensor) -> Tensor:
        population.load_state_dict(copy.deepcopy(saved))
        torch.manual_seed(0)
        return population(tokens)

    try:
        population.model.eval()
        with leaving_no_trace(population.device):
            return not repeats(logits, one, other, of_largest=_ROUNDING)
    finally:
        population.load_state_dict(saved)
        population.model.train(was_training)
