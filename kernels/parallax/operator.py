"""The Parallax kernels as PyTorch operators, for any length and for short sequences."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.registration import register
from mixerlab.kernels.common.triton_attention import short_constants, with_strides
from mixerlab.kernels.common.triton_elementwise import LOG2_E
from mixerlab.kernels.parallax.triton_launch import is_short, run_backward, run_forward, saved_like
from mixerlab.kernels.parallax.triton_short import short_backward_kernel, short_forward_kernel
from mixerlab.kernels.parallax.triton_tiles import for_copy_engine


def parallax_triton(q: Tensor, rho: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None) -> Tensor:
    """`parallax_attention` by the kernels; see there."""
    if scale <= 0:
        # The kernels take the maximum of the logits before they scale them, so the scale must be positive.
        q, scale = (q * 0, 1.0) if scale == 0 else (-q, -scale)
    if window is not None:
        window = min(window, q.shape[1])  # a larger one is the same, but may not fit in the kernels' 32 bits
    if is_short(q, k, window):
        return parallax_short_forward(q, rho, k, v, scale)
    head_dim = q.shape[-1]
    missing = -head_dim % (16 // q.element_size())
    if missing:  # rows must be whole 16 bytes; zeros at the end of q, rho, k and v do not change the result
        q, rho, k, v = (F.pad(x, (0, missing)) for x in (q, rho, k, v))
    o, *_ = parallax_forward(q, rho, k, v, scale, window)
    return o[..., :head_dim] if missing else o


@torch.library.custom_op("mixerlab::parallax_forward", mutates_args=())
def parallax_forward(
    q: Tensor, rho: Tensor, k: Tensor, v: Tensor, scale: float, window: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output and what the backward needs (`triton_launch.saved_like`)."""
    q, rho, k, v = map(for_copy_engine, (q, rho, k, v))
    return run_forward(q, rho, k, v, scale, window)


@parallax_forward.register_fake
def _(q, rho, k, v, scale, window):
    return q.new_empty(q.shape), *saved_like(q)


@torch.library.custom_op("mixerlab::parallax_backward", mutates_args=())
def parallax_backward(
    d_o: Tensor,
    q: Tensor,
    rho: Tensor,
    k: Tensor,
    v: Tensor,
    mean_v: Tensor,
    cov: Tensor,
    lse: Tensor,
    weight_at_0: Tensor,
    scale: float,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dR, dK and dV."""
    d_o, q, rho, k, v = map(for_copy_engine, (d_o, q, rho, k, v))
    return run_backward(d_o, q, rho, k, v, mean_v, cov, lse, weight_at_0, scale, window)


@torch.library.custom_op("mixerlab::parallax_short_forward", mutates_args=())
def parallax_short_forward(q: Tensor, rho: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The output of a short sequence (`triton_launch.is_short`), by one program for each head."""
    o = q.new_empty(q.shape)
    batch, length, heads, head_dim = q.shape
    short_forward_kernel[(batch * heads,)](
        *with_strides(*map(unit_stride, (q, rho, k, v)), o),
        *(heads, length, head_dim, scale * LOG2_E.value),
        **short_constants(q, 64),
    )
    return o


@torch.library.custom_op("mixerlab::parallax_short_backward", mutates_args=())
def parallax_short_backward(
    d_o: Tensor, q: Tensor, rho: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dR, dK and dV, from the inputs and dO only."""
    d_q, d_rho, d_k, d_v = (x.new_empty(x.shape) for x in (q, rho, k, v))
    batch, length, heads, head_dim = q.shape
    short_backward_kernel[(batch * heads,)](
        *with_strides(*map(unit_stride, (d_o, q, rho, k, v)), d_q, d_rho, d_k, d_v),
        *(heads, length, head_dim, scale, scale * LOG2_E.value),
        **short_constants(q, 128 if head_dim > 64 and length > 64 else 64),
    )
    return d_q, d_rho, d_k, d_v


register(parallax_forward, backward=parallax_backward, options=2)
register(parallax_backward, like="q rho k v")
register(parallax_short_forward, like="q", backward=parallax_short_backward, options=1)
register(parallax_short_backward, like="q rho k v")
