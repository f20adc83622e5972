"""Runs a fixed sequence of device operations as one CUDA graph, so that the host launches it in microseconds."""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

log = logging.getLogger(__name__)

WARM_UP_CALLS = 2  # the first compiles kernels, the second finds all of them and their workspaces ready


class Captured:
    """`function`, captured for arguments of the shapes of `example`, replayed at each call.

    `function` takes and returns tensors. Everything that it writes in place must be listed in `state`:
    warming up runs it, and puts the state back afterwards. The returned tensor is overwritten by the
    next call.
    """

    def __init__(self, function: Callable[..., Tensor], state: Sequence[Tensor], example: Sequence[Tensor]):
        self.function = function  # the graph reads tensors that it may hold, and keeps none alive
        self.arguments = [argument.clone() for argument in example]
        before = [tensor.detach().clone() for tensor in state]
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_CALLS):
                    function(*self.arguments)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = function(*self.arguments)
        finally:
            with torch.no_grad():
                for tensor, value in zip(state, before, strict=True):
                    tensor.copy_(value)

    def __call__(self, *arguments: Tensor) -> Tensor:
        for static, argument in zip(self.arguments, arguments, strict=True):
            static.copy_(argument)
        self.graph.replay()
        return self.result


def captured_or_plain(
    function: Callable[..., Tensor], state: Sequence[Tensor], example: Sequence[Tensor]
) -> tuple[Callable[..., Tensor], str | None]:
    """`Captured`, or `function` itself and the reason where CUDA refuses to capture it.

    Running out of memory is no refusal: it propagates, since the plain path would need as much.
    """
    try:
        return Captured(function, state, example), None
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = f"CUDA graph capture failed, so steps are launched one by one: {error}"
        log.warning(reason)
        return function, reason
