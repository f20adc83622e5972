"""Mixers written in plain PyTorch, each compiled by `torch.compile` for all replicas at once.

`torch.compile` inside an eager `vmap` fails or does nothing (PyTorch issue 128711), and compiling the whole population
takes 8 to 14 s for each new shape. So a compiled mixer is an `autograd.Function` whose rule for `vmap` calls a compiled
`vmap` of the mixer, on the tensors of all replicas. The compiled function does not depend on the vocabulary size.
"""

import copy
import gc
import types
from collections.abc import Callable, Hashable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from mixerlab.records.errors import with_place
from mixerlab.training.population import Population, places_of, side_by_side

BACKEND = "inductor"
# PyTorch's attention kernels, for a mixer that calls them: without cuDNN's, which the compiler cannot take under vmap
# (PyTorch 2.11: "expected Tensor() for op").
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

Function = Callable[..., Tensor]  # (module, tensors by replica, shared tensors, x) to the outputs [R, B, T, d_model]
# Of this process: cells of a sweep compile a mixer once. The key says what PyTorch would compile anew for.
_functions: dict[Hashable, Function] = {}
# Why PyTorch could not compile a mixer of these settings under that key.
_failures: dict[Hashable, str] = {}


def compile_mixers(
    population: Population, wanted: str | bool, *, dtype: torch.dtype, report: Callable[[str], None]
) -> None:
    """From now on the population's mixers run compiled, as `trainer.compile` wants it.

    `true`: all of them. `auto`: on a GPU those whose `resolved_backend` for `dtype` is `torch`, which have no kernels
    of their own. `false`: none. Only mixers under `vmap` are compiled, whose buffers replicas share. A mixer is
    compiled when it is first called, again for other shapes, as when a replica has left, and once for scoring. One that
    cannot be copied, or that PyTorch cannot compile, runs as it is. `report` gets a line for each mixer class that says
    what happened.
    """
    if wanted is False:
        return
    device, mixers = population.device, _mixers(population.model)
    for name, mixer in population.model.named_modules():
        if mixer not in mixers:
            continue
        label = type(mixer).__name__
        if wanted == "auto" and (device.type != "cuda" or mixer.resolved_backend(device, dtype) != "torch"):
            continue
        if population.in_a_loop:
            report(f"{label} is not compiled: replicas compute one after another")
        elif any(buffer.startswith(f"{name}.") for buffer in population.buffers_by_replica):
            report(f"{label} is not compiled: replicas have buffers of their own")
        else:
            try:
                module = copy.deepcopy(mixer).to("meta")
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of any type: it is the mixer's own
                report(f"{label} is not compiled: it cannot be copied: {with_place(error)}")
                continue
            mixer.forward = _CompiledForward(mixer, module, report)


def without_kernels(population: Population, dtype: torch.dtype) -> list[str]:
    """A line for each mixer class whose kernel does not take its sizes on this GPU, with `backend=auto`."""
    if population.device.type != "cuda":
        return []
    slow = {
        type(mixer).__name__
        for mixer in _mixers(population.model)
        if getattr(mixer, "backend", None) == "auto" and mixer.resolved_backend(population.device, dtype) == "reference"
    }
    return [
        f"{name} runs as its PyTorch reference, which is slow: its kernel does not take these sizes in"
        f" {str(dtype).removeprefix('torch.')} (mixer.backend=triton says why)"
        for name in sorted(slow)
    ]


def _mixers(model: Any) -> set[Any]:
    return {block.mixer for block in model.blocks}


class _CompiledForward:
    """Stands in for `mixer.forward`, under `vmap`.

    `module` is the code to compile, a copy of `mixer`. Its tensors are never used: those of `mixer` are passed in.
    """

    def __init__(self, mixer: nn.Module, module: nn.Module, report: Callable[[str], None]):
        self.mixer, self.module, self.report = mixer, module, report
        self.settings = _settings(module)
        self.places = tuple(places_of(mixer))  # `to("meta")` has untied the module's tensors, so it gets one for each
        self.ready: dict[Hashable, Function] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return _OverReplicas.apply(self, self.places, x, *(attrgetter(place)(self.mixer) for place in self.places))

    def over_replicas(self, by_replica: Mapping[str, Tensor], shared: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The mixer of all replicas: `x` `[R, B, T, d_model]`, tensors `[R, ...]` by replica or without that axis."""
        self.module.train(self.mixer.training)
        arguments = self.module, by_replica, shared, x
        key = self._key(by_replica, shared, x)
        if key not in self.ready:
            self.ready[key] = self._compiled(key, arguments)
        return self.ready[key](*arguments)

    def _key(self, by_replica: Mapping[str, Tensor], shared: Mapping[str, Tensor], x: Tensor) -> Hashable:
        kind = x.device.type
        state = (
            self.module.training,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
        )
        tensors = (("x", x), *by_replica.items(), *shared.items())
        described = tuple(
            (name, tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for name, tensor in tensors
        )
        return type(self.module), state, len(by_replica), described

    def _compiled(self, key: Hashable, arguments: tuple) -> Function:
        """The function of `key`, which has been tried; one that cannot be compiled comes as it is."""
        if (key, self.settings) not in _failures:
            label = type(self.mixer).__name__
            function = _functions.get(key) or _new_function()
            try:
                try:
                    _try(function, arguments)
                except torch._dynamo.exc.FailOnRecompileLimitHit:  # mixers of this class differ in more than the key
                    function = _new_function()
                    _try(function, arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # of any type: the mixer runs uncompiled, so the error is the compiler's
                reason = str(error).strip().partition("\n")[0]
                failure = f"{label} is not compiled: torch.compile fails with {type(error).__name__}: {reason}"
                _failures[key, self.settings] = failure
            else:
                _functions[key] = function
                self.report(f"{label} is compiled: torch.compile, {BACKEND}")
                return function
            # The error is in a cycle with the frames that called us. Their tensors would keep the parameters' autograd
            # node of this step, which refuses gradients for fewer replicas once one has left.
            gc.collect()
        self.report(_failures[key, self.settings])
        return _uncompiled_over_replicas


class _OverReplicas(torch.autograd.Function):
    """`_CompiledForward.over_replicas`, under `vmap` only: there autograd follows what its rule computes."""

    @staticmethod
    def setup_context(*_: Any) -> None:  # without one PyTorch refuses a function under vmap
        raise AssertionError("a population calls its model under vmap")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, compiled: _CompiledForward, names: tuple[str, ...], x: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, int]:
        _, _, x_dim, *dims = in_dims
        by_replica, shared = {}, {}
        for name, tensor, dim in zip(names, tensors, dims, strict=True):
            if dim is None:
                shared[name] = tensor
            else:
                # A parameter is a view of the population's tensor, whose width depends on the vocabulary. In a copy
                # nothing does: PyTorch would compile for the strides of each view anew.
                by_replica[name] = tensor.movedim(dim, 0).clone(memory_format=torch.contiguous_format)
        x = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
        return compiled.over_replicas(by_replica, shared, x), 0


def _one_replica(module: nn.Module, shared: Mapping[str, Tensor]) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    return lambda tensors, x: functional_call(module, {**tensors, **shared}, (x,), tie_weights=False)


def _over_replicas(
    module: nn.Module, by_replica: Mapping[str, Tensor], shared: Mapping[str, Tensor], x: Tensor
) -> Tensor:
    return vmap(_one_replica(module, shared))(by_replica, x)


def _uncompiled_over_replicas(
    module: nn.Module, by_replica: Mapping[str, Tensor], shared: Mapping[str, Tensor], x: Tensor
) -> Tensor:
    """`_over_replicas` as a population computes it, for what cannot be compiled."""
    return side_by_side(_one_replica(module, shared))(by_replica, x)


def _settings(module: nn.Module) -> str:
    """What else decides whether `module` can be compiled: the attributes that it and its parts have been given."""
    usual = vars(nn.Module())
    return repr(
        [
            (name, type(part), [(key, value) for key, value in vars(part).items() if key not in usual])
            for name, part in module.named_modules()
        ]
    )


def _new_function() -> Function:
    """A compiled `_over_replicas` with code of its own.

    PyTorch counts what it compiles for the code of a function, and refuses the ninth. It never becomes eager without a
    word: `fullgraph` makes that an error.
    """
    code = _over_replicas.__code__.replace()
    own = types.FunctionType(code, _over_replicas.__globals__, _over_replicas.__name__)
    return torch.compile(own, fullgraph=True, dynamic=False, backend=BACKEND)


def _try(function: Function, arguments: tuple[nn.Module, Mapping[str, Tensor], Mapping[str, Tensor], Tensor]) -> None:
    """Forward and backward on tensors of their own: PyTorch compiles the backward when it first runs, or fails to."""
    module, by_replica, shared, x = arguments
    names, tensors = list(by_replica), [x, *by_replica.values()]
    x, *tensors = own = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
    with sdpa_kernel(ATTENTION):
        result = function(module, dict(zip(names, tensors, strict=True)), shared, x)
    if result.requires_grad:
        wanted = [tensor for tensor in own if tensor.requires_grad]
        torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)
