"""Whether a model gives the same outputs for the same input; one that does not seems to see the future.

A mixer that stores its last input in a Python list, for instance, gives other outputs when another input came before.
The check of causality compares two calls, and cannot tell that from a leak: what it refuses is looked at once more.

A mixer that writes a buffer in evaluation mode and reads it does so once it is loaded. A run does not show it, because
a population drops what evaluation mode writes: the model is looked at by itself.
"""

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.func import functional_call

from mixerlab.checks.causality import NOISE, CausalityCheck, MixesRows, SeesFuture
from mixerlab.records.errors import RefusedCode
from mixerlab.training.execution import leaving_no_trace
from mixerlab.training.population import Population

KEEPS_STATE = (
    "gives different outputs for the same input: it keeps state between calls. Compute all of forward from x,"
    " parameters and buffers"
)
# Two outputs are the same if they differ by no more than this share of the largest: atomic sums of a GPU differ.
_ROUNDING = 1e-4


class KeepsState(RefusedCode):
    """The outputs of a mixer depend on its earlier calls."""


def repeats(
    compute: Callable[[Tensor], Tensor], one: Tensor, other: Tensor, *, of_each: float = 0.0, of_largest: float = 0.0
) -> bool:
    """Whether `compute(one)` is the same again with `compute(other)` between the two calls.

    Rounding is allowed: each element may differ by the share `of_each` of it and `of_largest` of the largest.
    """
    with torch.no_grad():
        first, _, second = compute(one), compute(other), compute(one)
    rounding = of_largest * first.abs().nan_to_num(0.0, posinf=0.0).max().item()  # others look for what is not finite
    return first.shape == second.shape and torch.allclose(first, second, rtol=of_each, atol=rounding, equal_nan=True)


def keeps_state(population: Population, vocab_size: int, length: int) -> bool:
    """Whether two calls with the same tokens differ, with a call with others between them.

    In evaluation and in training mode, in float32, with the same random numbers. The population and the state of all
    random generators stay as they were.
    """
    was_training, saved = population.model.training, copy.deepcopy(population.state_dict())
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randint(vocab_size, (2, len(population), 2, length), generator=generator).to(population.device)

    def logits(tokens: Tensor) -> Tensor:
        population.load_state_dict(copy.deepcopy(saved))
        torch.manual_seed(0)
        return population(tokens)

    try:
        with leaving_no_trace(population.device):
            for training in (False, True):
                population.model.train(training)
                if not repeats(logits, one, other, of_largest=_ROUNDING):
                    return True
        return False
    finally:
        population.load_state_dict(saved)
        population.model.train(was_training)


def written_buffers(population: Population, vocab_size: int, length: int, *, bf16: bool) -> list[str]:
    """The buffers that a model writes in evaluation mode, if it then gives other outputs for the same input.

    Looks at the first replica by itself, as it starts, if the trial of `choose_execution` saw that a buffer changes;
    under bf16 autocast if the run trains so. The population and the state of all random generators stay as they were.
    """
    if not population.buffers_by_replica:
        return []
    model, was_training = population.model, population.model.training
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randint(vocab_size, (2, 2, length), generator=generator).to(population.device)
    start = {name: buffer.clone() for name, buffer in model.named_buffers()}
    start |= {name: buffer[0].clone() for name, buffer in population.buffers_by_replica.items()}
    parameters = {}
    for name, values in population.parameters_by_name().items():
        noise = NOISE * torch.randn(values[0].shape, generator=generator)
        parameters[name] = values[0].detach() + noise.to(values)

    def written(dtype: torch.dtype) -> list[str]:
        tensors = parameters | {name: buffer.clone() for name, buffer in start.items()}

        def logits(tokens: Tensor) -> Tensor:  # `tensors` takes what it writes, for the next call
            torch.manual_seed(0)
            with torch.autocast(population.device.type, dtype, enabled=dtype == torch.bfloat16):
                return functional_call(model, tensors, (tokens,)).float()

        if repeats(logits, one, other, of_largest=_ROUNDING):
            return []
        return [name for name, buffer in start.items() if not torch.equal(tensors[name], buffer)]

    try:
        model.eval()
        with leaving_no_trace(population.device):
            if bf16 and not written(torch.bfloat16):
                return []
            return written(torch.float32)  # what changes in bfloat16 may be rounding
    finally:
        model.train(was_training)


def writes_buffers(names: Iterable[str]) -> str:
    """What is wrong with a mixer that writes these buffers, named as in the mixer or the model."""
    of_mixer = dict.fromkeys(name.rpartition(".mixer.")[2] for name in names)
    return (
        f"writes {', '.join(of_mixer)} in evaluation mode, so that it gives different outputs for the same input: write"
        " buffers only if self.training"
    )


def check_outputs(
    causality: CausalityCheck | None,
    name: str,
    vocab_size: int,
    length: int,
    population: Population,
    bf16: bool,
    batch_size: int,
) -> None:
    """As `CausalityCheck`, but a mixer that keeps state is refused for that, also if it may see the future.

    Raises:
        KeepsState, SeesFuture, MixesRows: which it is.
    """
    if written := written_buffers(population, vocab_size, length, bf16=bf16):
        raise KeepsState(f"mixer={name} {writes_buffers(written)}")
    if causality is None:
        return
    try:
        causality(population, bf16, batch_size)
    except (SeesFuture, MixesRows):
        if keeps_state(population, causality.vocab_size, causality.found_at):
            raise KeepsState(f"mixer={name} {KEEPS_STATE}") from None
        raise
