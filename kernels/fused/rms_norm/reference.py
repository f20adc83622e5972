"""RMSNorm in PyTorch."""

import torch
from torch import Tensor


def wide_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`rms_norm` in PyTorch, in float32, or float64 for float64."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
