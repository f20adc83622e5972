"""Runs a fixed sequence of device operations as one CUDA graph, so that the host launches it in microseconds.

Each training captures its own, which takes a tenth or two of a second a graph.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from mixerlab.kernels.common.ahead import compiling_ahead

log = logging.getLogger(__name__)

WARM_UP_CALLS = 2  # the first compiles kernels, the second finds all of them and their workspaces ready

Step = Callable[[Tensor], Tensor]


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any = None) -> Iterator[None]:
    """Captures what is launched within the block, as `graph`."""
    collected = gc.isenabled()
    gc.disable()  # a forgotten graph that is destroyed meanwhile makes the capture invalid (PyTorch's 161037)
    try:
        # The outer context restores the current stream if capturing fails, which PyTorch's own does not.
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        if collected:
            gc.enable()


class SharedMemory:
    """A memory pool for graphs that are never replayed at the same time. It lives as long as this or one of them."""

    def __init__(self):
        self._new_pool()

    def _new_pool(self, generators: Sequence[torch.Generator] = ()) -> None:
        # PyTorch frees a pool with its last graph and then refuses its id. An empty graph keeps the pool alive.
        self.empty = torch.cuda.CUDAGraph()
        for generator in generators:
            self.empty.register_generator_state(generator)
        with _capturing(self.empty):
            torch.zeros((), device="cuda")
        self.pool = self.empty.pool()

    def recover(self, failed: torch.cuda.CUDAGraph, generators: Sequence[torch.Generator]) -> None:
        """Later captures have another pool, once that of `failed` in this one has failed.

        Where CUDA refuses the end of a capture, PyTorch (2.11; later versions in part) leaves the allocator recording
        to the pool, which then refuses the next graph ("already recording to mempool_id"), and its generators
        capturing, which then refuse to draw. A capture that succeeds ends the latter.
        """
        device = torch.cuda.current_device()
        with suppress(RuntimeError):  # it is not recording: the capture has ended
            torch._C._cuda_endAllocateToPool(device, self.pool)
            torch._C._cuda_releasePool(device, self.pool)
            _abandoned.append(failed)
        self._new_pool(generators)


_abandoned: list[torch.cuda.CUDAGraph] = []  # the allocator of pinned memory goes on asking them


class Captured:
    """`function`, captured as a CUDA graph for an argument of the shape of `example`, and replayed at each call.

    Capturing first runs the function to warm up. `state` must list every tensor that the function writes in place:
    their values are restored afterwards, and so are the states of `generators`, which must list every generator that
    the function draws from, but for the default one. The next call overwrites the returned tensor. Temporary memory
    comes from `memory`, or from a pool of the graph's own if that is None. If capturing fails, other functions can be
    captured afterwards. `ahead`: the function may first run on whatever is in memory, to compile its kernels at once.
    """

    def __init__(
        self,
        function: Step,
        state: Sequence[Tensor],
        example: Tensor,
        memory: SharedMemory | None = None,
        generators: Sequence[torch.Generator] = (),
        ahead: bool = False,
    ):
        self.function = function  # keeps tensors alive that the graph reads: the graph itself does not
        self.argument = example.clone()
        before = [tensor.detach().clone() for tensor in state]
        generators_before = [generator.get_state() for generator in generators]
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                if ahead:
                    with compiling_ahead():
                        function(self.argument)
                for _ in range(WARM_UP_CALLS):
                    function(self.argument)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            for generator in generators:  # at each replay the graph goes on from their states, and moves them on
                self.graph.register_generator_state(generator)
            memory = memory or SharedMemory()
            # A graph has the address of cuBLAS's workspace but does not keep it: Lightning frees it when a run ends,
            # and PyTorch when another graph goes (issue 193402). So it shall come from the pool, which stays.
            torch._C._cuda_clearCublasWorkspaces()
            try:
                with _capturing(self.graph, memory.pool):
                    self.result = function(self.argument)
            except Exception:
                memory.recover(self.graph, generators)
                raise
        finally:
            with torch.no_grad():
                for tensor, value in zip(state, before, strict=True):
                    tensor.copy_(value)
            for generator, its_state in zip(generators, generators_before, strict=True):
                generator.set_state(its_state)

    def __call__(self, argument: Tensor) -> Tensor:
        self.argument.copy_(argument)
        self.graph.replay()
        return self.result


def captured(function: Step, *arguments: Any) -> tuple[Step, str | None]:
    """`Captured`, of the same arguments, and None; if CUDA cannot capture the function, that and the reason.

    Running out of memory propagates: launching the operations one by one would need as much.
    """
    try:
        return Captured(function, *arguments), None
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = f"CUDA graph capture failed, so steps are launched one by one: {error}"
        log.warning(reason)
        return function, reason
