"""A population: R replicas of one architecture (learning rates x seeds), stepped together.

All parameters of all replicas are one float32 tensor `[R, P]`; a replica is a row, and `Layout` says which columns are
which parameter's. Freezing a replica, clipping its gradient or copying it is then one operation on a row, and an
optimizer is a few operations on column ranges.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, vmap

from mixerlab.kernels.optimizer.join_columns import join_columns
from mixerlab.kernels.softmax_attention.under_vmap import replicas_in_batch
from mixerlab.models.stream import ALL
from mixerlab.training.layout import PAPER, Grouping, Layout

_STREAM = 1  # of a seed: initial values and the order of rows come from other streams


def is_ours(model: nn.Module) -> bool:
    """Whether all code of a model is ours or PyTorch's, so that it reads no tensor's values but those of the tokens."""
    return all(type(module).__module__.startswith(("mixerlab.", "torch.")) for module in model.modules())


def places_of(model: nn.Module) -> dict[str, str]:
    """Each place of a parameter or buffer, one name for a (module, attribute), and the name that PyTorch lists it by.

    A module that is registered twice has one place for each of its tensors; a tensor that two modules have, two.
    """
    names: dict[Tensor, str] = {}
    places = {}
    for prefix, module in model.named_modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                place = f"{prefix}.{attribute}".lstrip(".")
                places[place] = names.setdefault(tensor, place)
    return places


@contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards the attributes of all modules are what they were; parameters, buffers and layers are no attributes."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)


def call_with(
    model: nn.Module, places: Mapping[str, str], tensors: dict[str, Tensor], arguments: tuple[Any, ...]
) -> Any:
    """`model(*arguments)` with `tensors`, by their names, in `places`; afterwards `tensors` has what `model` assigned.

    `torch.func.functional_call` by itself does not give a module that is registered twice its own tensors back (PyTorch
    issue 164759), so it gets each place once. What the model sets in attributes is gone: a cache that says there that
    it is filled has its table in a buffer, which is another one in the next call.
    """
    given = {place: tensors[name] for place, name in places.items() if name in tensors}
    with attributes_kept(model):
        result = functional_call(model, given, arguments, tie_weights=False)
    tensors.update({name: given[name] for name in tensors})
    return result


class _Parameters(torch.autograd.Function):
    """Every parameter of all replicas, `[R, *shape]` in the order of `layout`; their gradients come back as one tensor.

    Where there is a `dtype`, the hidden linear weights are in it: what autocast does to each, for all at once.
    """

    @staticmethod
    def forward(ctx: Any, flat: Tensor, layout: Layout, dtype: torch.dtype | None) -> tuple[Tensor, ...]:
        ctx.dtype = flat.dtype
        lowered = flat[:, layout.lowered].to(dtype or flat.dtype)
        return tuple(
            (lowered if slot.is_lowered else flat)[:, slot.start : slot.stop].view(len(flat), *slot.shape)
            for slot in layout.slots
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return join_columns(gradients, ctx.dtype), None, None


def side_by_side(one_replica: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.func.vmap`, except that attention folds the replicas into its batch."""

    def replicas(*arguments: Any) -> Any:
        with replicas_in_batch():
            return vmap(one_replica)(*arguments)

    return replicas


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


def with_fixed_in_buffers(model: nn.Module) -> nn.Module:
    """`model`, with buffers in place of frozen parameters and, not to be saved, of tensors in attributes of modules.

    So they move with the model, and replicas and captured graphs know of them. A tensor of a module with hooks before
    forward stays as it is: `torch.nn.utils.weight_norm` has one make it anew. So does one whose class has an attribute
    of its name, which would hide the buffer.
    """
    for module in model.modules():
        for name, parameter in dict(module._parameters).items():
            if parameter is not None and not parameter.requires_grad:
                delattr(module, name)
                module.register_buffer(name, parameter.detach())
        attributes = {} if module._forward_pre_hooks else dict(vars(module))
        for name, held in attributes.items():
            if isinstance(held, Tensor) and not held.requires_grad and not hasattr(type(module), name):
                delattr(module, name)
                module.register_buffer(name, held, persistent=False)
    return model


def require_same_again(build: Callable[[], nn.Module], seed: int, built: nn.Module) -> None:
    """Raises ValueError unless `build` gives the initial values of `built` again, with the same seed."""
    with seeded(seed):
        model = build()
    again = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in (*built.named_parameters(), *built.named_buffers()):
        if not _equal(tensor, again[name]):
            kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
            raise ValueError(
                f"{kind} {name} starts otherwise each time the model is built with the same seed: draw it with"
                " torch (torch.empty draws nothing), or give your own generator a fixed seed, as in"
                " numpy.random.default_rng(0)"
            )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and elements; NaN equals NaN."""
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _by_seed(buffers: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The buffers that differ between replicas, `[R, ...]`, ordered by name; ValueError for shapes that differ."""
    found = {}
    for name in sorted(buffers[0]):
        values = [its[name] for its in buffers]
        if any(value.shape != values[0].shape for value in values):
            raise ValueError(f"the shape of buffer {name} depends on the seed, and replicas have the same shapes")
        if not all(_equal(value, values[0]) for value in values):
            found[name] = torch.stack(values)
    return found


def seed_of_stream(seed: int, *stream: int) -> int:
    """The seed, of 32 bits, of a stream of random numbers: `seed` is that of the replica."""
    return int(np.random.SeedSequence(seed, spawn_key=stream).generate_state(1)[0])


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


class Population(nn.Module):
    """R replicas of the model that `build` makes, one for each of `seeds` (its initial values' seed).

    They share the model's buffers, but for those that depend on the seed and those that `own` gives each of them. What
    is frozen in the model is a buffer (`with_fixed_in_buffers`). They compute side by side under `vmap`, or one after
    another once `compute_in_a_loop` was called; only then may a model draw random numbers.

    Attributes:
        replicas: the numbers of those it holds: all at the start, in order, and what `keep` left of them later.
        places: of the model's tensors (`places_of`).
        buffers_by_replica: the buffers that each replica has for itself, by their names in the model, `[R, ...]`.
        generators: in a loop one for each replica, on the device of the parameters; else none.

    Raises:
        ValueError: a model that starts otherwise each time it is built with the same seed, or a buffer whose shape
            depends on the seed.
    """

    model: nn.Module

    def __init__(self, build: Callable[[], nn.Module], seeds: Sequence[int], grouping: Grouping = PAPER):
        super().__init__()
        self.seeds, self.replicas = list(seeds), list(range(len(seeds)))
        rows: list[Tensor] = []
        buffers: list[dict[str, Tensor]] = []

        def built() -> nn.Module:
            return with_fixed_in_buffers(build())

        for seed in seeds:
            with seeded(seed):
                model = built()
            layout = Layout(model, grouping)
            values = dict(model.named_parameters())
            rows.append(torch.cat([values[slot.name].detach().flatten() for slot in layout.slots]))
            if not buffers:
                require_same_again(built, seed, model)
            buffers.append(dict(model.named_buffers()))
        self.layout = layout
        self.buffers_by_replica = _by_seed(buffers)
        self.generators: list[torch.Generator] = []
        self.parameters_by_replica = nn.Parameter(torch.stack(rows))
        # The model gives the code and the buffers; its own parameters are never used. It stays out of
        # this module's children so that the population's only parameter is the one above.
        object.__setattr__(self, "model", model.requires_grad_(False))
        self.places = places_of(model)

    def _apply(self, fn, recurse=True):
        self.model._apply(fn)
        self.buffers_by_replica = {name: fn(buffer) for name, buffer in self.buffers_by_replica.items()}
        return super()._apply(fn, recurse)

    def __len__(self) -> int:
        return len(self.replicas)

    @property
    def in_a_loop(self) -> bool:
        """Whether replicas compute one after another, and not side by side under `vmap`."""
        return bool(self.generators)

    @property
    def device(self) -> torch.device:
        return self.parameters_by_replica.device

    def learned(self) -> list[Tensor]:
        """The tensors that training changes, each `[R, ...]`: the parameters, and the replicas' own buffers."""
        return [self.parameters_by_replica, *self.buffers_by_replica.values()]

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with only the replicas in these rows."""
        self.replicas = [self.replicas[row] for row in rows]
        parameters = self.parameters_by_replica
        parameters.data, parameters.grad = parameters.data[list(rows)], None
        self.buffers_by_replica = {name: buffer[list(rows)] for name, buffer in self.buffers_by_replica.items()}
        # Copies: those of the former replicas are registered with their graph.
        self.generators = [self.generators[row].clone_state() for row in rows] if self.generators else []

    def own(self, names: Iterable[str]) -> None:
        """From now on each replica has the model's buffers of these names for itself, and training may change them."""
        buffers = dict(self.model.named_buffers())
        owned = {name: torch.stack([buffers[name]] * len(self)) for name in names}
        self.buffers_by_replica = dict(sorted((owned | self.buffers_by_replica).items()))

    def compute_in_a_loop(self) -> None:
        """From now on replicas compute one after another, each with a generator that is seeded by its seed."""
        seeds = (seed_of_stream(self.seeds[number], _STREAM) for number in self.replicas)
        self.generators = [torch.Generator(self.device).manual_seed(seed) for seed in seeds]

    def get_extra_state(self) -> dict[str, Any]:
        """What a checkpoint holds besides the parameters."""
        return {
            "buffers": dict(self.buffers_by_replica),
            "generators": [generator.get_state() for generator in self.generators],
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Takes over what `get_extra_state` gave."""
        for name, buffer in self.buffers_by_replica.items():
            buffer.copy_(state["buffers"][name])
        if self.generators and state["generators"]:  # under vmap there are none, and nothing is drawn
            for generator, its_state in zip(self.generators, state["generators"], strict=True):
                generator.set_state(its_state)

    def parameters_by_name(self) -> dict[str, Tensor]:
        """The parameters of all replicas, each `[R, *shape]`; under autocast linear weights are in its dtype."""
        kind = self.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        values = _Parameters.apply(self.parameters_by_replica, self.layout, dtype)
        return {slot.name: value for slot, value in zip(self.layout.slots, values, strict=True)}

    def forward(self, tokens: Tensor, scored: slice = ALL) -> Tensor:
        """Token ids `[R, B, T]`, each replica its own batch, to logits `[R, B, S, V]` of the positions `scored`.

        In training mode the buffers that replicas have for themselves take the values that the model gives them; in
        evaluation mode nothing changes.
        """

        def one_replica(
            parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], tokens: Tensor
        ) -> tuple[Tensor, dict[str, Tensor]]:
            tensors = {**parameters, **buffers}
            logits = call_with(self.model, self.places, tensors, (tokens, scored))
            return logits, {name: tensors[name] for name in buffers}  # in which it has put what the model assigned

        parameters, own = self.parameters_by_name(), self.buffers_by_replica
        if not self.in_a_loop:
            buffers = {name: buffer.clone() for name, buffer in own.items()}
            logits, changed = side_by_side(one_replica)(parameters, buffers, tokens)
        else:
            rows = {name: values.unbind() for name, values in parameters.items()}
            results = []
            for row, generator in enumerate(self.generators):
                its_parameters = {name: values[row] for name, values in rows.items()}
                its_buffers = {name: buffer[row].clone() for name, buffer in own.items()}
                with drawing_from(generator):
                    results.append(one_replica(its_parameters, its_buffers, tokens[row]))
            logits = torch.stack([its_logits for its_logits, _ in results])
            changed = {name: torch.stack([buffers[name] for _, buffers in results]) for name in own}
        for name, buffer in own.items() if self.model.training else ():
            if changed[name].shape != buffer.shape:
                before, after = (list(tensor.shape[1:]) for tensor in (buffer, changed[name]))
                raise ValueError(
                    f"forward replaces the buffer {name} of shape {before} by one of {after}: a buffer keeps its"
                    " shape, so make it in __init__, or compute it from x"
                )
            buffer.copy_(changed[name].detach())
        return logits
