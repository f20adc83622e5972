"""The contract of a sequence mixer: what `mixerlab check` and the tests ask of one by itself."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from mixerlab.checks.construction import check_construction
from mixerlab.checks.outputs import ROWS, Kind, find_leak, find_state
from mixerlab.mixers.base import NORM_EPS, SequenceMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.models.stream import ALL, ResidualStream
from mixerlab.records.errors import RefusedMixer, users_code, with_place
from mixerlab.training.execution import Decision, choose_execution, gradient_note
from mixerlab.training.population import Population, seeded

log = logging.getLogger(__name__)

VOCAB, WIDTH = 8, 32
LENGTH = 17  # tokens; of so many, all cuts fit in one batch
LENGTHS = (129, 65, LENGTH)  # the longest that a mixer takes; 129 is above the usual chunks
DRAWS = 9  # of weights and tokens, over which the error in bfloat16 is a median
NO_GRADIENT = "'x' gets no gradient: forward does not use it, or cuts it off with detach, torch.no_grad or NumPy"

MakeMixer = Callable[[], SequenceMixer]


def _require(condition: object, message: str) -> None:
    if not condition:
        raise RefusedMixer(message)


def _require_close(what: str, actual: Tensor, expected: Tensor) -> None:
    worst = (actual - expected).abs().max().item()
    _require(torch.allclose(actual, expected, rtol=1e-4, atol=1e-5), f"{what}: off by up to {worst:.1e}")


def check_everything(make_mixer: MakeMixer, d_model: int = WIDTH) -> Decision:
    """The whole contract of the mixer that `make_mixer()` builds at width `d_model`; returns how its replicas compute.

    RefusedMixer says the first check that the mixer fails, ValueError the error that it raises, perhaps of the width.
    """
    try:
        with seeded(0), users_code():
            return check_mixer(lambda: without_zeros(make_mixer()), d_model)
    except RefusedMixer:
        raise
    except Exception as error:  # of the mixer
        at = f"checked at d_model={d_model}; model.d_model=... checks at another width"
        raise ValueError(f"{with_place(error)} ({at})") from error


def without_zeros(mixer: SequenceMixer) -> SequenceMixer:
    """The mixer itself, with N(0, 0.1) in parameters that start at zero: they would hide the gradients of others."""
    for parameter in mixer.parameters():
        if parameter.requires_grad and not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return mixer


def check_mixer(make: MakeMixer, d_model: int = WIDTH) -> Decision:
    check_construction(make, all_strays=True)
    y = make().eval()(torch.randn(2, LENGTH, d_model, requires_grad=True).clone())
    _require(getattr(y, "requires_grad", True), NO_GRADIENT)  # before a backward fails in PyTorch's words
    check_outputs(make, d_model)
    unused = gradient_note(check_gradients(make(), d_model))
    check_lengths(make(), d_model)
    check_state(make(), d_model)
    check_declarations(make())
    return replace(check_replicas(make, d_model), unused=unused)


class _Bare(nn.Module):
    """The outputs of a mixer in a model, without the residual stream that hides small ones: `[B, T, d_model]`."""

    def __init__(self, make: MakeMixer, d_model: int):
        super().__init__()
        self.embedding, self.norm, self.mixer = nn.Embedding(VOCAB, d_model), nn.RMSNorm(d_model, NORM_EPS), make()

    def forward(self, tokens: Tensor, scored: slice = ALL) -> Tensor:
        update = ResidualStream(self.embedding(tokens)).add(self.mixer, self.norm).update
        assert update is not None
        return update[:, scored]


def check_outputs(make: MakeMixer, d_model: int) -> None:
    """They depend on nothing but the row so far: on no later input, no other row (but in training) and no other call.

    In evaluation and in training mode, with noise in all parameters, of a short sequence and of a long one.
    """
    population = Population(lambda: _Bare(make, d_model), [0])
    choose_execution(population, "auto", torch.randint(VOCAB, (1, 2, LENGTH)), ALL, bf16=False)
    for length, batch in ((LENGTH, 128), (_longest(make()), ROWS)):
        found = find_leak(population, VOCAB, length, batch)
        if refusal := find_state(population, VOCAB, length):
            raise RefusedMixer(refusal)
        if found is not None and not (found.kind is Kind.ROWS and found.training):
            raise RefusedMixer(found.message)


def check_gradients(mixer: SequenceMixer, d_model: int) -> dict[str, int]:
    """Gradients are finite, and that of the input is not zero, in float32 and evaluation mode.

    Returns the number of elements of the trained parameters whose gradient is zero, by name.
    """
    x = torch.randn(2, _longest(mixer), d_model, requires_grad=True)
    y = mixer.eval()(x)
    _require(y.dtype == x.dtype, f"the output's dtype is {y.dtype} for an input of {x.dtype}")
    (y * torch.randn_like(y)).sum().backward()
    trained = {name: parameter for name, parameter in mixer.named_parameters() if parameter.requires_grad}
    for name, tensor in (("x", x), *trained.items()):
        _require(tensor.grad is None or tensor.grad.isfinite().all(), f"the gradient of {name} is not finite")
    _require(x.grad is not None and x.grad.any(), NO_GRADIENT)
    return {name: p.numel() for name, p in trained.items() if p.grad is None or not p.grad.any()}


@torch.no_grad()
def check_lengths(mixer: SequenceMixer, d_model: int) -> None:
    """Any length from 1 to the longest that `state_size` accepts; a prefix of the input gives that of the output."""
    mixer.eval()
    x = torch.randn(1, _longest(mixer), d_model)
    whole = mixer(x)
    for length in (length for length in (1, 2, 5, 64) if length < x.shape[1]):
        what = (
            f"the outputs of the first {length} of {x.shape[1]} positions change when the others are removed (forward"
            " depends on later positions or on the length)"
        )
        _require_close(what, mixer(x[:, :length]), whole[:, :length])


def _longest(mixer: SequenceMixer) -> int:
    """Of `LENGTHS`: a mixer that has a longest sequence refuses longer ones in `state_size`, with a ValueError."""
    for length in LENGTHS[:-1]:
        with suppress(ValueError):
            mixer.state_size(length)
            return length
    return LENGTHS[-1]


@torch.no_grad()
def check_state(mixer: SequenceMixer, d_model: int = WIDTH) -> None:
    """`prefill` gives what `forward` gives; `state_size` is the size of the state that `init_state` makes."""
    mixer.eval()
    x, outputs = torch.randn(2, LENGTH, d_model), []
    state = mixer.init_state(2, LENGTH, x.device, x.dtype)
    _require_state(state, "init_state")
    elements = sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point()) / 2
    for tokens in x.split((5, 3, *(1,) * (LENGTH - 8)), dim=1):
        given = mixer.prefill(tokens, state)
        is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Tensor)
        _require(is_pair, "prefill must give two things: the outputs, a tensor, and the state")
        y, state = given
        _require_state(state, "prefill")
        kinds = [f"{list(tensor.shape)} of {tensor.dtype}" for tensor in (y, tokens)]
        _require(kinds[0] == kinds[1], f"prefill gives outputs {kinds[0]} for tokens {kinds[1]}: they must be alike")
        outputs.append(y)
    stepped, expected = torch.cat(outputs, dim=1), mixer(x)
    right = torch.isclose(stepped, expected, rtol=1e-4, atol=1e-5).all(dim=2).all(dim=0)
    where = f"first at token {int(right.int().argmin()) + 1}"
    _require_close(f"what prefill of 5, 3, 1, 1, ... tokens gives, beside forward, {where}", stepped, expected)
    size = mixer.state_size(LENGTH)
    is_own = type(mixer).init_state is not SequenceMixer.init_state
    _require(
        not is_own or size == elements,
        f"state_size({LENGTH}) is {size}, and init_state gives {elements:g} elements to a sequence of {LENGTH} tokens",
    )


def _require_state(state: object, method: str) -> None:
    is_state = isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())
    _require(is_state, f"{method} must give a state that is a dict of tensors")


def check_declarations(mixer: SequenceMixer) -> None:
    """`state_size` is a positive integer that does not fall with the length; `resolved_backend` names one."""
    lengths = [1, LENGTH, _longest(mixer)]
    sizes = [mixer.state_size(length) for length in lengths]
    is_right = all(type(size) is int and size > 0 for size in sizes) and sizes == sorted(sizes)
    fix = "it must give positive integers that do not fall"
    _require(is_right, f"state_size gives {sizes} for {lengths} tokens: {fix}")
    backend = mixer.resolved_backend(torch.device("cpu"), torch.float32)
    _require(backend in ("torch", "reference"), f"resolved_backend gives {backend!r} for a CPU, not 'torch'")


def check_replicas(make: MakeMixer, d_model: int = WIDTH) -> Decision:
    """In a model, seeds together compute what each computes by itself, also in bfloat16; warns if that is far off.

    Returns how replicas of this mixer compute when `trainer.replicas` is auto: in a loop if vmap refuses it in float32,
    or in bfloat16 only (as a convolution with a bias, whose dtype autocast leaves), which `why` then says.
    """
    seeds = torch.randint(2**31, (DRAWS,)).tolist()
    tokens, weight = torch.randint(VOCAB, (DRAWS, 3, LENGTH)), torch.randn(3, LENGTH, VOCAB)

    def computed(rows: slice, bf16: bool) -> tuple[dict[str, Tensor], Decision]:
        """The output and the gradients by each replica, `[R, N]`."""
        population = Population(lambda: LanguageModel(VOCAB, d_model, 1, make), seeds[rows])
        decision = choose_execution(population, "auto", tokens[rows], ALL, bf16=bf16)
        population.model.eval()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = population(tokens[rows]).float()
        (gradient,) = torch.autograd.grad((logits * weight).sum(), population.parameters_by_replica)
        found = {"the output": logits.detach().flatten(1)}
        for slot in population.layout.slots:
            found[f"the gradient of {slot.name.removeprefix('blocks.0.')}"] = gradient[:, slot.start : slot.stop]
        found["the gradient"] = gradient
        for what, tensor in found.items():
            _require(tensor.isfinite().all(), f"{what} is not finite (bf16 autocast: {bf16})")
        return found, decision

    (exact, decision), (lowered, decision_bf16) = (computed(slice(None), bf16) for bf16 in (False, True))
    for bf16, together in ((False, exact), (True, lowered)):
        for row in range(2):
            alone, _ = computed(slice(row, row + 1), bf16)
            for what in ("the output", "the gradient"):
                off = ((together[what][row] - alone[what][0]).norm() / alone[what].norm()).item()
                _require(off < 1e-4, f"{what} of a replica is {off:.1e} off beside others (bf16 autocast: {bf16})")
    # In the median replica: where a mixer normalises a sum whose terms happen to cancel, their last bits decide the
    # result. And a gradient that is zero but for rounding, as that of a bias of keys under a softmax, has no size.
    least = 1e-3 * exact["the gradient"].norm(dim=1)
    for what, right in exact.items():
        size, most = (right.norm(dim=1), 0.05) if what == "the output" else (right.norm(dim=1).clamp(min=least), 0.15)
        off = ((lowered[what] - right).norm(dim=1) / size).median().item()
        if off >= most:
            log.warning("%s under bf16 autocast is %.0f%% off: keep what needs range in float32", what, 100 * off)
    if decision.why is None and decision_bf16.why is not None:
        return replace(decision_bf16, why=f"in bfloat16, {decision_bf16.why}")
    return decision
