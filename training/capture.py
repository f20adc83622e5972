"""Runs a fixed sequence of device operations as one CUDA graph, so that the host launches it in microseconds.

A graph refers to tensors by address. `GraphCache` keeps the graphs of finished runs together with the memory at those
addresses. A later run that launches the same operations on tensors of the same shapes moves its tensors there and
captures nothing.
"""

import gc
import logging
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from mixerlab.kernels.common.ahead import compiling_ahead
from mixerlab.records.identity import run_id

log = logging.getLogger(__name__)

KEPT_SETS = 16  # of graphs
WARM_UP_CALLS = 2  # the first compiles kernels, the second finds all of them and their workspaces ready

Step = Callable[[Tensor], Tensor]


def room_for(count: int, least: int) -> int:
    """The smallest power of two >= `count`, but at least `least`: a length for a tensor of `count` entries.

    Padded to it, tensors of different counts have the same shape, and runs that only look up entries can share graphs.
    """
    return max(least, 1 << (count - 1).bit_length())


def graph_key(
    config: Mapping[str, Any], code: Mapping[str, str], sizes: Sequence[int], rows: int, in_tensors: Collection | None
) -> str:
    """Equal for runs whose steps launch the same operations on tensors of the same shapes and precision.

    It is the identity of a run without what the step reads from tensors, and without what the step does not see, and
    with the hashes of its `code`, which may be reloaded. Only of our own code is it known what it reads from tensors:
    in that of a user a number of the schedule, or of the steps in all, would become a constant of the graph.

    Args:
        sizes: what the model takes from its task.
        rows: the number of training rows, which with the keys of the trainer says how many steps there are.
        in_tensors: `training.optimizers.in_tensors` of the optimizer's class.
    """
    not_seen = ("seed",) if in_tensors is None else ("seed", "schedule", "trainer")
    computed = {
        "model": config["model"] | {"may_see_future": False},  # the causality check reads it, and no step does
        "optimizer": config["optimizer"] | dict.fromkeys(in_tensors or ()),
        "task": [*sizes, *([rows] if in_tensors is None else [])],
    }
    return run_id({**config, **dict.fromkeys(not_seen), **computed, "code": [code["mixer"], code["training"]]})


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


class Graphs:
    """Functions captured on the same tensors.

    Args:
        key: under which `GraphCache` keeps these graphs; None if nothing is shared.
        written: tensors that outlive a call and that the functions change.
        read: tensors that outlive a call and that the functions only read.
        memory: the memory pool of the graphs, as for `Captured`.
        generators: those that the functions draw from, as for `Captured`.

    Attributes:
        notes: for the record of this run, and of each later run that reuses the graphs.
    """

    def __init__(
        self,
        key: Hashable,
        written: Sequence[Tensor],
        read: Sequence[Tensor],
        memory: SharedMemory | None,
        generators: Sequence[torch.Generator] = (),
    ):
        self.key, self.memory = key, memory
        self.written, self.read = ([tensor.data for tensor in tensors] for tensors in (written, read))
        self.generators = list(generators)
        self.made: dict[str, Captured] = {}
        self.notes: list[str] = []

    def move_in(
        self, written: Sequence[Tensor], read: Sequence[Tensor], generators: Sequence[torch.Generator] = ()
    ) -> None:
        """Moves other tensors of the same shapes to the addresses that the graphs use, and generators likewise."""
        for place, tensor in zip((*self.written, *self.read), (*written, *read), strict=True):
            place.copy_(tensor.data)
            tensor.data = place
        for registered, generator in zip(self.generators, generators, strict=True):
            registered.set_state(generator.get_state())
            generator.graphsafe_set_state(registered)  # from here on the two share one state

    def step(self, function: Step, example: Tensor, ahead: bool = False) -> tuple[Step, str | None]:
        """The graph of `function` (kept by its name) and None; if CUDA cannot capture it, `function` and the reason.

        `ahead` is that of `Captured`. Running out of memory propagates: launching the operations one by one would need
        as much.
        """
        name = function.__name__
        try:
            if name not in self.made:
                self.made[name] = Captured(function, self.written, example, self.memory, self.generators, ahead)
            return self.made[name], None
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = f"CUDA graph capture failed, so steps are launched one by one: {error}"
            log.warning(reason)
            return function, reason


class GraphCache:
    """The last `KEPT_SETS` sets of `Graphs` that were given back, in a process that trains one run at a time.

    They occupy device memory: their tensors, and in `memory` as much temporary memory as the largest graph needs.
    """

    def __init__(self):
        self.free: dict[Hashable, Graphs] = {}
        self.memory: SharedMemory | None = None

    def take(
        self,
        key: Hashable,
        written: Sequence[Tensor],
        read: Sequence[Tensor],
        generators: Sequence[torch.Generator] = (),
    ) -> Graphs:
        """Graphs on these tensors and generators, for the caller's exclusive use until `give_back`.

        Functions of the same name, captured under the same `key` for tensors of the same shapes, must launch the same
        operations. With `key=None` nothing is shared, not even memory.
        """
        if key is None:
            return Graphs(None, written, read, None, generators)
        shapes = ((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in (*written, *read))
        key = key, len(generators), *shapes
        if key in self.free:
            graphs = self.free.pop(key)
            graphs.move_in(written, read, generators)
            return graphs
        if self.memory is None:
            self.memory = SharedMemory()
        return Graphs(key, written, read, self.memory, generators)

    def give_back(self, graphs: Graphs) -> None:
        """Makes the graphs available to later runs. The caller must not replay them again, but may use its tensors."""
        if graphs.key is not None:
            self.free[graphs.key] = graphs
            while len(self.free) > KEPT_SETS:
                del self.free[next(iter(self.free))]

    def clear(self) -> bool:
        """Drops all graphs that are not in use and the shared memory; returns whether there was such memory."""
        had_memory = self.memory is not None
        self.free.clear()
        self.memory = None
        return had_memory
