"""The contract of a sequence mixer, as checks of one of them: what `mixerlab check` and the tests run."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from mixerlab.checks.causality import Leak, find_leak, is_rounding
from mixerlab.checks.repeatability import KEEPS_STATE, keeps_state, repeats, writes_buffers
from mixerlab.checks.strays import strays
from mixerlab.config.arguments import check_arguments, class_of
from mixerlab.config.yamls import check_yaml
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.models.stream import ALL, ResidualStream
from mixerlab.records.errors import with_place
from mixerlab.training.execution import Decision, StrayParameters, choose_execution, made_in_forward
from mixerlab.training.population import Execution, Population, require_same_again, seeded, side_by_side

VOCAB, WIDTH, LENGTH = 8, 32, 19
DRAWS = 9  # of weights and tokens, over which the error in bfloat16 is a median


class ContractBroken(AssertionError):
    """A mixer does not keep the contract; the message says how."""


class FailsAtWidth(ValueError):
    """A mixer raises an error, perhaps of the width at which it was checked, which the message names."""


def _require(condition: object, message: str) -> None:
    if not condition:
        raise ContractBroken(message)


def _gradient(label: str, tensor: Tensor) -> Tensor:
    if not tensor.requires_grad:
        raise ContractBroken(f"{label!r} has requires_grad=False: what does not train is a buffer")
    if tensor.grad is None:
        raise ContractBroken(
            f"{label!r} gets no gradient: forward does not use it, or cuts it off with detach, torch.no_grad or NumPy"
        )
    return tensor.grad


def _require_close(what: str, actual: Tensor, expected: Tensor, rtol: float, atol: float) -> None:
    worst = (actual - expected).abs().max().item()
    _require(torch.allclose(actual, expected, rtol=rtol, atol=atol), f"{what}: off by up to {worst:.1e}")


def check_config(config: Mapping[str, Any], name: str) -> None:
    """The yaml has the name of its file, and every argument of the constructor as a key, so that it can be set."""
    check_yaml(config, name)
    mixer_class = class_of(config["_target_"])
    _require(issubclass(mixer_class, SequenceMixer), f"{mixer_class.__name__} must be a subclass of SequenceMixer")
    given = {key: value for key, value in config.items() if key not in ("name", "_target_")}
    check_arguments("mixer", mixer_class, given, ("d_model",), yaml=f"mixer/{name}.yaml")
    parameters = inspect.signature(mixer_class).parameters.values()
    others = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    arguments = {parameter.name for parameter in parameters if parameter.kind not in others} - {"d_model"}
    lacking = sorted(arguments - set(given))
    _require(not lacking, f"mixer/{name}.yaml lacks arguments of the constructor: {', '.join(lacking)}")


def check_output(mixer: nn.Module, x: Tensor) -> Tensor:
    """The output for `x`, which must be a tensor of the shape and dtype of `x`."""
    before = set(mixer.state_dict())
    y = mixer(x)
    made = set(mixer.state_dict()) - before
    _require(not made, made_in_forward(made))
    message = f"{type(mixer).__name__} gives a {type(y).__name__}: it must give a tensor [B, T, d_model]"
    _require(isinstance(y, Tensor), message)
    _require(y.shape == x.shape, f"the output's shape is {tuple(y.shape)} for an input of {tuple(x.shape)}")
    _require(y.dtype == x.dtype, f"the output's dtype is {y.dtype} for an input of {x.dtype}")
    return y


def check_forward(mixer: nn.Module, dtype: torch.dtype = torch.float32, d_model: int = WIDTH) -> None:
    """Shape, dtype, causality, tensors that are parameters or buffers, finite gradients to the input and parameters.

    As it is scored: without dropout, and with statistics that stay.
    """
    mixer = mixer.to(dtype).eval()
    if stray := next(strays(mixer), None):
        raise ContractBroken(str(stray))
    x = torch.randn(2, LENGTH, d_model, dtype=dtype, requires_grad=True)
    y = check_output(mixer, x)
    _require(y.isfinite().all(), "the output is not finite")

    (y * torch.randn_like(y)).sum().backward()
    for label, tensor in (("x", x), *mixer.named_parameters()):
        gradient = _gradient(label, tensor)
        _require(gradient.isfinite().all(), f"the gradient of {label} is not finite")
        _require(gradient.any(), f"{label} is not used: its gradient is zero")

    with torch.no_grad():
        for t in range(1, LENGTH):
            changed = x.clone()
            changed[:, t] += 1
            change = (mixer(changed) - y).abs().amax(dim=(0, 2))
            _require(change.isfinite().all(), "the output is not finite")
            before, later = change[:t], change[t:].max().item()
            sees = f"position {before.argmax().item()} sees position {t}, which is later"
            _require(is_rounding(before.max().item(), later, dtype), sees)


def check_same_again(mixer: nn.Module, d_model: int = WIDTH) -> None:
    """The same input gives the same output after another: a mixer that remembers it would seem to see the future."""
    mixer.eval()
    x = torch.randn(2, LENGTH, d_model)
    given = x.clone()
    before = {name: buffer.clone() for name, buffer in mixer.named_buffers()}
    same_again = repeats(mixer, x, torch.randn_like(x), of_each=1e-5)
    _require(torch.equal(x, given), "it overwrites its input: write x = 2 * x in place of x *= 2")
    written = [name for name, buffer in mixer.named_buffers() if not torch.equal(buffer, before.get(name, buffer))]
    _require(same_again or not written, f"it {writes_buffers(written)}")
    _require(same_again, f"it {KEEPS_STATE}, and draw random numbers only if self.training")


def check_draws(make: Callable[[], SequenceMixer], d_model: int = WIDTH) -> None:
    """Initial values come from the seed, and in evaluation mode nothing is drawn.

    Not even once, in the first call, as a loaded model would draw it anew.
    """
    x = torch.randn(2, LENGTH, d_model)
    with seeded(0):
        built = make()
    try:
        require_same_again(make, 0, built)
    except ValueError as error:
        raise ContractBroken(str(error)) from error

    def output(seed: int) -> Tensor:
        with seeded(0), torch.no_grad():
            mixer = make().eval()
            torch.manual_seed(seed)
            return mixer(x.clone())

    _require(
        torch.allclose(output(1), output(2), rtol=1e-5, atol=1e-6, equal_nan=True),
        "forward draws random numbers in evaluation mode, so that a loaded model gives other outputs: give F.dropout"
        " training=self.training, or draw in __init__, into a buffer",
    )


def check_causality(make: Callable[[], SequenceMixer], d_model: int = WIDTH) -> None:
    """In a model, as a run looks: in evaluation and in training mode, with noise in all parameters.

    Rows may influence each other in training mode only, as through the statistics of a norm.
    """
    population = Population(lambda: LanguageModel(VOCAB, d_model, 1, make), [0])
    choose_execution(population, "auto", torch.randint(VOCAB, (1, 2, LENGTH)), ALL, bf16=False)
    leak = find_leak(population, VOCAB, LENGTH, bf16=False)
    _require(not isinstance(leak, Leak) or not keeps_state(population, VOCAB, LENGTH), f"it {KEEPS_STATE}")
    if isinstance(leak, Leak) and leak.between_rows:
        _require(leak.training, f"{leak}. Compute each row of x by itself")
    elif isinstance(leak, Leak):
        raise ContractBroken(f"it sees the future: {leak}")


def check_small_vocabulary(mixer: SequenceMixer, d_model: int = WIDTH) -> None:
    """As the first layer of a model with a small vocabulary, the mixer computes what it computes of tensors."""
    mixer.eval()
    tokens, table = torch.randint(5, (2, LENGTH)), torch.randn(5, d_model, requires_grad=True)
    norm = nn.RMSNorm(d_model, eps=1e-5)
    late = ResidualStream.of_tokens(tokens, table).add(mixer, norm).value()
    at_once = ResidualStream(table[tokens]).add(mixer, norm).value()
    _require_close("the first layer of a small vocabulary: the output", late, at_once, rtol=1e-4, atol=1e-5)
    weight, wanted = torch.randn_like(late), [table, *mixer.parameters()]
    gradients = (torch.autograd.grad((y * weight).sum(), wanted) for y in (late, at_once))
    for a, b in zip(*gradients, strict=True):
        _require_close("the first layer of a small vocabulary: a gradient", a, b, rtol=1e-3, atol=1e-4)


def check_lengths(mixer: SequenceMixer, d_model: int = WIDTH) -> None:
    """Any length from 1 to the longest that `state_size` accepts; a prefix of the input gives that of the output."""
    mixer.eval()
    x = torch.randn(1, next((length for length in (70, 48, 32) if _accepts(mixer, length)), LENGTH), d_model)
    whole = mixer(x)
    for length in (length for length in (1, 2, 5, 64) if length < x.shape[1]):
        what = (
            f"the outputs of the first {length} of {x.shape[1]} positions change when the others are removed (forward"
            " depends on later positions or on the length)"
        )
        _require_close(what, mixer(x[:, :length]), whole[:, :length], rtol=1e-4, atol=1e-5)


def _accepts(mixer: SequenceMixer, length: int) -> bool:
    """A mixer that has a longest sequence refuses longer ones in `state_size`, with a ValueError."""
    try:
        mixer.state_size(length)
    except ValueError:
        return False
    return True


def check_declarations(mixer: SequenceMixer) -> None:
    """`state_size` is a positive integer that does not fall with the length; `resolved_backend` names one."""
    lengths = [1, LENGTH, *(length for length in (64, 128) if _accepts(mixer, length))]
    sizes = [mixer.state_size(length) for length in lengths]
    _require(
        all(type(size) is int and size > 0 for size in sizes) and sizes == sorted(sizes),
        f"state_size gives {sizes} for {lengths} tokens: it must give positive integers that do not fall",
    )
    backend = mixer.resolved_backend(torch.device("cpu"), torch.float32)
    _require(backend in ("torch", "reference"), f"resolved_backend gives {backend!r} for a CPU, not 'torch'")


def check_replicas(build: Callable[[], nn.Module], batch: int = 2, length: int = LENGTH, d_model: int = WIDTH) -> None:
    """Two replicas under `vmap`, as training runs them, compute what each computes by itself, gradients included."""
    torch.manual_seed(0)
    models = [build().eval(), build().eval()]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(2, batch, length, d_model, requires_grad=True)
    weight = torch.randn_like(x)

    stacked = side_by_side(lambda p, b, x: functional_call(models[0], (p, b), (x,)))(parameters, buffers, x)
    (stacked * weight).sum().backward()
    for r, model in enumerate(models):
        alone = x[r].detach().requires_grad_()
        out = model(alone)
        (out * weight[r]).sum().backward()
        _require_close(f"replica {r} under vmap: the output", stacked[r], out, rtol=1e-4, atol=1e-5)
        what = f"replica {r} under vmap: the gradient of x"
        _require_close(what, _gradient("x", x)[r], _gradient("x", alone), rtol=1e-3, atol=1e-5)
        for name, parameter in model.named_parameters():
            what = f"replica {r} under vmap: the gradient of {name}"
            _require_close(what, _gradient(name, parameters[name])[r], _gradient(name, parameter), rtol=1e-3, atol=1e-4)


def check_population(make: Callable[[], SequenceMixer], d_model: int = WIDTH) -> Decision:
    """In a model, seeds together compute what each computes by itself, and in bfloat16 nearly what in float32.

    Returns:
        How replicas of this mixer compute when `trainer.replicas` is auto: in a loop if vmap refuses it in float32 or
        in bfloat16.
    """

    def population_of(seeds: list[int], tokens: Tensor, bf16: bool) -> tuple[Population, Decision]:
        population = Population(lambda: LanguageModel(VOCAB, d_model, 1, make), seeds)
        decision = choose_execution(population, "auto", tokens, ALL, bf16=bf16)
        population.model.eval()
        return population, decision

    def results(population: Population, tokens: Tensor, bf16: bool) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = population(tokens)
        loss = (logits.float() * weight).sum()
        found = logits.detach().float(), torch.autograd.grad(loss, population.parameters_by_replica)[0]
        for what, tensor in zip(("output", "gradient"), found, strict=True):
            _require(tensor.isfinite().all(), f"the {what} is not finite (bf16 autocast: {bf16})")
        return found

    seeds = torch.randint(2**31, (DRAWS,)).tolist()
    tokens, weight = torch.randint(VOCAB, (DRAWS, 3, LENGTH)), torch.randn(3, LENGTH, VOCAB)
    population, decision = population_of(seeds, tokens, bf16=False)
    # vmap may refuse in bfloat16 only: a convolution with a bias, whose dtype autocast leaves.
    in_bf16, bf16_decision = population_of(seeds, tokens, bf16=True)
    together = {False: results(population, tokens, False), True: results(in_bf16, tokens, True)}
    for replica in range(2):
        its_tokens = tokens[replica : replica + 1]
        for bf16 in (False, True):
            by_itself, _ = population_of([seeds[replica]], its_tokens, bf16)
            alone = results(by_itself, its_tokens, bf16)
            for what, both, one in zip(("output", "gradient"), together[bf16], alone, strict=True):
                off = ((both[replica] - one[0]).norm() / both[replica].norm()).item()
                _require(off < 1e-4, f"the {what} of a replica is {off:.1e} off beside others (bf16 autocast: {bf16})")
    (exact, exact_gradient), (lowered, lowered_gradient) = together[False], together[True]
    _require_near_in_bf16("the output", exact, lowered, 0.05)
    # A parameter whose gradient is zero but for rounding, as the bias of keys under a softmax, has no size of its own.
    least = 1e-3 * exact_gradient.norm(dim=1)
    for slot in population.layout.slots:
        columns = slice(slot.start, slot.stop)
        what = f"the gradient of {slot.name.removeprefix('blocks.0.')}"
        _require_near_in_bf16(what, exact_gradient[:, columns], lowered_gradient[:, columns], 0.15, least)
    return decision if decision.execution is Execution.LOOP else bf16_decision


def _require_near_in_bf16(what: str, exact: Tensor, lowered: Tensor, most: float, least: Tensor | None = None) -> None:
    """Requires that the error of `lowered` `[R, ...]` is below `most` of the size of `exact`, in the median replica.

    A single replica tells little. Where a mixer normalises a sum whose terms happen to cancel, their last bits decide
    the result, and one position can make more than half of the gradient. A mixer that is wrong in bfloat16 is wrong in
    most replicas.

    Args:
        least: the size `[R]` by which errors are measured where `exact` is smaller.
    """
    size = exact.flatten(1).norm(dim=1)
    if least is not None:
        size = size.clamp(min=least)
    off = ((lowered - exact).flatten(1).norm(dim=1) / size).median().item()
    _require(off < most, f"{what} under bf16 autocast is {off:.1e} off: keep what needs range in float32")


def without_zeros(mixer: SequenceMixer) -> SequenceMixer:
    """The mixer itself, with N(0, 0.1) in parameters that start at zero: they would hide the gradients of others."""
    for parameter in mixer.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return mixer


def check_everything(
    config: Mapping[str, Any], name: str, make_mixer: Callable[[], SequenceMixer], d_model: int = WIDTH
) -> Decision:
    """The whole contract of the mixer that `make_mixer()` builds at width `d_model` from `config`.

    Returns:
        How its replicas will compute: a loop is slower, and breaks no contract.

    Raises:
        ContractBroken: the first check that the mixer fails.
        FailsAtWidth: the mixer raises an error.
        ValueError: the yaml does not fit the class.
    """
    torch.manual_seed(0)
    check_config(config, name)
    try:
        return _check_built(lambda: without_zeros(make_mixer()), d_model)
    except ContractBroken:
        raise
    except StrayParameters as error:
        raise ContractBroken(str(error)) from error
    except Exception as error:  # of the mixer
        message = str(error) if isinstance(error, ValueError) else with_place(error)
        at = f"checked at d_model={d_model}; model.d_model=... checks at another width"
        raise FailsAtWidth(f"{message} ({at})") from error


def _check_built(make: Callable[[], SequenceMixer], d_model: int) -> Decision:
    """`check_everything` but the yaml."""
    with torch.random.fork_rng(devices=()):  # so that the checks after it draw what they drew without it
        check_output(make().eval(), torch.randn(2, LENGTH, d_model))
        check_draws(make, d_model)  # what draws would also give other outputs the second time
        check_same_again(make(), d_model)
    check_forward(make(), d_model=d_model)
    with torch.random.fork_rng(devices=()):
        check_causality(make, d_model)
    check_small_vocabulary(make(), d_model)
    check_lengths(make(), d_model)
    check_declarations(make())
    decision = check_population(make, d_model)
    if decision.execution is Execution.VMAP:
        check_replicas(make, d_model=d_model)
    return decision
