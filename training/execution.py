"""Decides how the replicas of a population compute: side by side under `vmap`, or one after another.

It tries. `vmap` refuses a model for many reasons: an `autograd.Function` without a rule for it, a value that the host
looks at, random numbers, modules such as `nn.GRU`. These errors share no exception type, so an error under `vmap`
counts as a refusal only if a single replica runs without one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from mixerlab.kernels.common.ahead import compiling_ahead
from mixerlab.records.errors import RefusedMixer, with_place
from mixerlab.training.layout import names_once
from mixerlab.training.population import Population, call_with, is_ours, side_by_side

LATE_READ = (
    "backward reads parameters from the module, which has a replica's values only during forward."
    " torch.utils.checkpoint does so when it computes again: hand every parameter over as an argument,"
    " checkpoint(function, x, self.decay, use_reentrant=False), or do without it"
)
ALIAS = (
    "forward reads a parameter from a list, a dict or a closure, where it has the values of no replica: read it as an"
    " attribute of its module, or keep several in an nn.ParameterList"
)
DRAWS = (
    "forward draws random numbers in evaluation mode, so that each score is that of one draw: give F.dropout"
    " training=self.training, or draw in __init__, into a buffer"
)


@dataclass(frozen=True)
class Decision:
    """Lines for the record: `why` replicas compute in a loop, if they do, and the parameters that are `unused`."""

    why: str | None = None
    unused: str | None = None


def gradient_note(sizes: Mapping[str, int]) -> str | None:
    """A line that names the parameters without gradient, if there are any; `sizes` has their elements, by name."""
    why = "forward does not use them at this length, or cuts them off with detach, torch.no_grad or NumPy"
    count = sum(sizes.values())
    return f"{count:,} parameters get no gradient, in {names_once(sizes)}: {why}" if sizes else None


def choose_execution(population: Population, wanted: str, tokens: Tensor, scored: slice, *, bf16: bool) -> Decision:
    """Makes `population` compute as `wanted`: `vmap`, `loop`, or `auto`, a loop only if `vmap` refuses its model.

    Buffers that the model changes become each replica's own; besides these nothing changes. The decision depends on
    code, device and shapes only, so a run that is continued decides as before.

    Args:
        tokens: int64 `[R, B, T]`, of which the positions `scored` are scored.
        bf16: try under bfloat16 autocast.

    Raises:
        RefusedMixer: the model reads or makes parameters that are no replica's, or draws in evaluation mode.
        ValueError: `vmap` is wanted, and refuses the model.
        Exception: what the model raises for one replica without `vmap` too.
    """
    before = set(population.model.state_dict())
    decision = _decide(population, wanted, partial(_try, population, tokens, scored, bf16))
    if made := sorted(set(population.model.state_dict()) - before):
        fix = "which a run does not train or load again: make it in __init__"
        raise RefusedMixer(f"forward makes {', '.join(made)}, {fix}")
    return decision


class _Trial(NamedTuple):
    """The shared buffers that a model changes, whether it draws in evaluation mode, and why `vmap` refuses it.

    `unused`: as in a `Decision`.
    """

    changed: set[str]
    draws: bool = False
    refusal: str = ""
    unused: str | None = None


def _decide(population: Population, wanted: str, trial: Callable[..., _Trial]) -> Decision:
    """How it computes; its own buffers, and a loop, are set up."""
    found = _Trial(set(), refusal="trainer.replicas=loop")
    if wanted != "loop":
        found = _under_vmap(trial)
        if not found.refusal and not found.changed:
            return Decision(unused=found.unused)  # vmap allows no random numbers
    alone = trial(_first_replica)
    if alone.draws:
        raise RefusedMixer(DRAWS)
    population.own(found.changed | alone.changed)  # of both: a mixer may change a buffer in its first call only
    refusal = found.refusal
    if wanted != "loop" and population.buffers_by_replica:
        refusal = _under_vmap(trial).refusal
        if not refusal:
            return Decision(unused=alone.unused)
    if wanted == "vmap":
        raise ValueError(f"trainer.replicas=vmap, but {refusal}; choose auto or loop")
    population.compute_in_a_loop()
    return Decision(f"replicas compute one after another ({refusal})", alone.unused)


def _under_vmap(trial: Callable[..., _Trial]) -> _Trial:
    try:
        return trial(side_by_side)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of any type; the caller finds out whether it is one of the model
        # Not the error, whose traceback would keep the tensors of the trial.
        return _Trial(set(), refusal=f"vmap refuses the model: {with_place(error)}")


def _first_replica(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As `side_by_side`, but only the first replica computes."""

    def computed(parameters: dict[str, Tensor], buffers: dict[str, Tensor], tokens: Tensor) -> Tensor:
        first = ({name: tensor[0] for name, tensor in tensors.items()} for tensors in (parameters, buffers))
        return function(*first, tokens[0])

    return computed


def _try(
    population: Population, tokens: Tensor, scored: slice, bf16: bool, over_replicas: Callable[[Callable], Callable]
) -> _Trial:
    """Computes forward and backward, and forward in evaluation mode."""
    model, device = population.model, tokens.device
    shared = {name: buffer for name, buffer in model.named_buffers() if name not in population.buffers_by_replica}
    changed: set[str] = set()
    copies: list[dict[str, Tensor]] = []

    def one_replica(parameters: dict[str, Tensor], buffers: dict[str, Tensor], tokens: Tensor) -> Tensor:
        copied = {name: buffer.clone() for name, buffer in shared.items()}
        tensors = {**parameters, **buffers, **copied}
        logits = call_with(model, population.places, tensors, (tokens, scored))
        # BatchNorm writes its statistics without counting a version.
        changed.update(name for name, buffer in copied.items() if tensors[name] is not buffer or buffer._version)
        copies.append(copied)
        return logits

    def logits() -> tuple[Tensor, dict[str, Tensor]]:
        buffers = {name: buffer.clone() for name, buffer in population.buffers_by_replica.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            parameters = population.parameters_by_name()
            return over_replicas(one_replica)(parameters, buffers, tokens), parameters

    with leaving_no_trace(device):
        model.train()
        if device.type == "cuda" and is_ours(model):
            with compiling_ahead():
                _gradients(*logits())
        unused = _check_reads(population, logits)
        with torch.no_grad():
            model.eval()
            before = _generators(device)
            logits()
            draws = any(not torch.equal(a, b) for a, b in zip(before, _generators(device), strict=True))
            model.train()
        changed.update(name for copied in copies for name in copied if not torch.equal(copied[name], shared[name]))
    return _Trial(changed, draws, unused=unused)


def _generators(device: torch.device) -> list[Tensor]:
    """The states of the generators that a model on `device` may draw from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _check_reads(population: Population, logits: Callable[[], tuple[Tensor, dict[str, Tensor]]]) -> str | None:
    """Computes forward and backward; RefusedMixer if either reads parameters that are no replica's.

    A population gives its model the parameters of a replica during forward (`call_with`). What the model has of
    its own is that of no replica: whoever reads it trains with wrong values, and without an error. Here it is NaN.

    Args:
        logits: computes them; gives them, and the parameters that they are computed of, by name.

    Returns:
        A line that names the parameters without gradient, if there are any.
    """

    def are_finite(found: dict[str, Tensor | None]) -> bool:
        return all(gradient is None or bool(gradient.isfinite().all()) for gradient in found.values())

    with _own_values_nan(population.model):
        computed, parameters = logits()
        found = _gradients(computed, parameters)
        is_finite, has_gradient = computed.isfinite().all(), are_finite(found)
    if not (is_finite and has_gradient):
        computed, parameters = logits()
        if computed.isfinite().all() and not is_finite:
            raise RefusedMixer(ALIAS)
        if are_finite(_gradients(computed, parameters)) and not has_gradient:
            raise RefusedMixer(LATE_READ)
    slots = population.layout.slots
    return gradient_note({slot.name: slot.stop - slot.start for slot in slots if found[slot.name] is None})


def _gradients(computed: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor | None]:
    try:
        found = torch.autograd.grad(computed, [*parameters.values()], torch.ones_like(computed), allow_unused=True)
    except CheckpointError as error:  # what it saves differs: the module's own need no gradient
        raise RefusedMixer(LATE_READ) from error
    return dict(zip(parameters, found, strict=True))


@contextmanager
def _own_values_nan(model: nn.Module) -> Iterator[None]:
    """The parameters that the model has of its own are NaN, also where it has them in a list."""
    values = {parameter: parameter.detach().clone() for parameter in model.parameters()}
    try:
        with torch.no_grad():
            for parameter in values:
                parameter.fill_(torch.nan)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in values.items():
                parameter.copy_(value)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all trials: the allocator keeps the memory that a stream has freed for that stream."""
    return torch.cuda.Stream(device)


@contextmanager
def leaving_no_trace(device: torch.device) -> Iterator[None]:
    """The generators of `device` go on as before. Operations run in a stream of their own.

    A CUDA graph cannot be captured of tensors that an operation in the default stream may still use for a gradient.
    """
    if device.type != "cuda":
        with torch.random.fork_rng(devices=()):
            yield
        return
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.random.fork_rng(devices=[device]), torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)
