"""The decode kernel as a PyTorch operator, for CUDA graphs and `torch.compile`."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register
from mixerlab.kernels.parallax.decode.triton_decode import run_decode


@torch.library.custom_op("mixerlab::parallax_decode", mutates_args=())
def decode(
    q: Tensor,
    rho: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor | None,
    scale: float,
    window: int | None,
) -> Tensor:
    """`parallax_decode` by the kernel; see there."""
    return run_decode(q, rho, k_cache, v_cache, lengths, scale, window)


@decode.register_fake
def _(q, rho, k_cache, v_cache, lengths, scale, window):
    return q.new_empty(q.shape)


register(decode, refusal="parallax_decode cannot be differentiated: use parallax_attention")
