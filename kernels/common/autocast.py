"""What autocast does to operators, which PyTorch does not know as its own."""

import torch
from torch import Tensor


def autocast(*tensors: Tensor) -> list[Tensor]:
    """The tensors as autocast casts them, if it is on. It leaves float64 as it is, as PyTorch does."""
    return [x if x.dtype == torch.float64 else x.to(default_dtype(x)) for x in tensors]


def default_dtype(x: Tensor) -> torch.dtype:
    """Autocast's dtype if autocast is on, else that of `x`."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
