"""What autocast does to operators, which PyTorch does not know as its own."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable)


def autocast(*tensors: Tensor) -> list[Tensor]:
    """The tensors as autocast casts them, if it is on. It leaves float64 as it is, as PyTorch does."""
    return [x if x.dtype == torch.float64 else x.to(default_dtype(x)) for x in tensors]


def default_dtype(x: Tensor) -> torch.dtype:
    """Autocast's dtype if autocast is on, else that of `x`."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def without_autocast(reference: Function) -> Function:
    """A function of tensors, computed without autocast, which would round its float32 products."""

    @wraps(reference)
    def computed(x: Tensor, *others: Any, **options: Any) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return reference(x, *others, **options)

    return computed  # type: ignore[return-value]
