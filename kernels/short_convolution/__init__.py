"""A causal depthwise convolution over a few positions and SiLU, as recurrent mixers apply to their inputs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.autocast import without_autocast
from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.common.shapes import check_shapes

MAX_TAPS = 4  # a thread of the kernel keeps that many rows in registers


def short_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """`y_t = silu(bias + sum_k weight[:, k] x_{t - taps + 1 + k})`, with `x` zero before the first position.

    Args:
        x: `[batch, T, channels]`; any strides.
        weight: `[channels, taps]`; the last tap is for the current position.
        bias: `[channels]`, or `None` for zero.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, at most 4 taps).

    Returns:
        `[batch, T, channels]` in the dtype of `x`; the kernel adds in float32.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    check_shapes(("x", x, ("batch", "T", "channels")))
    check_shapes(("weight", weight, (*x.shape[2:], "taps")), fitting=f"x {tuple(x.shape)}")
    if bias is not None:
        check_shapes(("bias", bias, x.shape[2:]), fitting=f"x {tuple(x.shape)}")
    if resolve_backend(backend, x.device, why_not_kernel(x, weight)) == "reference":
        return _reference(x, weight, bias)
    from mixerlab.kernels.short_convolution.operator import convolution  # here, because Triton is optional

    if bias is None:
        bias = weight.new_zeros(weight.shape[0])
    # One group of parameters; under vmap each replica is another.
    return convolution(x, weight.float()[None], bias.float()[None])


@without_autocast
def _reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    channels, taps = weight.shape
    dtype = torch.promote_types(x.dtype, torch.float32)
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
    y = F.conv1d(x.to(dtype).transpose(1, 2), weight[:, None], bias, padding=taps - 1, groups=channels)
    return F.silu(y[..., : x.shape[1]]).transpose(1, 2).to(x.dtype)


def why_not_kernel(x: Tensor, weight: Tensor) -> str:
    """Why the Triton kernel does not take these; empty if it does."""
    if weight.shape[1] > MAX_TAPS:
        return f"the kernel takes at most {MAX_TAPS} taps, not {weight.shape[1]}"
    return why_not_triton(x)
