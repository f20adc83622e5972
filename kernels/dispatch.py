"""What every operator here shares: which backend runs, and how replicas fold into the batch under vmap."""

from collections.abc import Callable

import torch
from torch import Tensor

BACKENDS = ("auto", "reference", "triton")


def resolve_backend(backend: str, device: torch.device, supported: bool = True, why: str = "") -> str:
    """The backend that runs: `reference` (PyTorch) or `triton`.

    `auto` takes `triton` for a CUDA tensor where the kernel is `supported` (its caller says `why` not).

    Raises:
        ValueError: an unknown backend, or `triton` forced where it cannot run.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown: choose one of {', '.join(BACKENDS)}")
    if backend == "auto":
        return "triton" if device.type == "cuda" and supported else "reference"
    if backend == "triton" and not supported:
        raise ValueError(f"backend='triton' cannot run here: {why}; choose backend='auto' or 'reference'")
    return backend


def fold_replicas(op: Callable, info, in_dims: tuple, *args):
    """A vmap rule for an operator whose tensor arguments and results all have the batch in front.

    The replica axis moves in front of the batch, both fold into one, and `op` runs once. Register with
    `torch.library.register_vmap(op, partial(fold_replicas, op))`.
    """
    replicas = info.batch_size

    def fold(arg, dim):
        if not isinstance(arg, Tensor):
            return arg
        arg = arg.expand(replicas, *arg.shape) if dim is None else arg.movedim(dim, 0)
        return arg.flatten(0, 1)

    result = op(*(fold(arg, dim) for arg, dim in zip(args, in_dims, strict=True)))
    if isinstance(result, Tensor):
        return result.unflatten(0, (replicas, -1)), 0
    return tuple(r.unflatten(0, (replicas, -1)) for r in result), (0,) * len(result)
