"""Parallax attention of a few new tokens over a cache of keys and values: one step of generation, or of a draft.

The formula is that of `kernels.parallax`: o = Σ p (1 + t̄ - t) v, with p the softmax of `scale q·k`, t = ρ·k and
t̄ = Σ p t (Parallax, equation `parallax_forward`). It reads K and V once, as softmax attention does.
"""

import torch
from torch import Tensor

from mixerlab.kernels.parallax import check_inputs, parallax_backend
from mixerlab.kernels.parallax.decode.reference import decode_reference

MAX_TOKENS = 8


def parallax_decode(
    q: Tensor,
    rho: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    lengths: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Parallax attention of the last n tokens of each sequence; not differentiable.

    The caches hold the keys and values of these n tokens too, as the last ones of each sequence. Token i of the n sees
    the keys up to its own. What a cache holds beyond a sequence's length has no effect, even if it is not finite.

    Args:
        q, rho: `[B, n, Hq, D]`, n from 1 to 8.
        k_cache, v_cache: `[B, S, Hkv, D]`, of any strides; Hq is a multiple of Hkv.
        lengths: int32 `[B]` on the device of q, from 0 to S; None: all are S. A token before the start of its sequence
            gives zeros, and so does an empty sequence.
        scale: multiplies q·k, and not ρ·k; `D ** -0.5` by default.
        window: a token sees itself and the `window - 1` keys before it; by default all of them.
        backend: `reference` (PyTorch), `triton` (GPU) or `auto`.

    A captured CUDA graph can be replayed while `lengths` grow: how the cache is divided depends on S alone.

    Returns:
        `[B, n, Hq, D]` in q's dtype.

    Raises:
        TypeError, ValueError: arguments of the wrong type, or that do not fit each other.
    """
    check_inputs(window, cached=True, q=q, rho=rho, k_cache=k_cache, v_cache=v_cache)
    batch, tokens = q.shape[:2]
    if tokens > MAX_TOKENS or tokens > k_cache.shape[1]:
        raise ValueError(f"q has {tokens} tokens: pass at most {MAX_TOKENS}, and no more than the cache holds")
    if lengths is not None and (lengths.shape != (batch,) or lengths.dtype != torch.int32):
        raise ValueError(f"lengths is {lengths.dtype} of shape {tuple(lengths.shape)}: pass int32 of shape ({batch},)")
    if lengths is not None and lengths.device != q.device:
        raise ValueError(f"lengths is on {lengths.device} and q on {q.device}: move them to one device")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if parallax_backend(q.device, q.dtype, q.shape[-1], backend) == "reference":
        return decode_reference(q, rho, k_cache, v_cache, lengths, scale, window)

    from mixerlab.kernels.parallax.decode.operator import decode  # here, because Triton is optional

    return decode(q, rho, k_cache, v_cache, lengths, scale, window)
