"""The Parallax kernels as PyTorch operators: tile sizes, buffers and arguments, for any length and short sequences."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_attention import padded_head_dim, short_constants, with_strides
from mixerlab.kernels.common.triton_elementwise import LOG2_E
from mixerlab.kernels.parallax.triton_backward_dkv import dkv_kernel
from mixerlab.kernels.parallax.triton_backward_dq import dq_kernel, preprocess_kernel
from mixerlab.kernels.parallax.triton_forward import forward_kernel
from mixerlab.kernels.parallax.triton_short import short_backward_kernel, short_forward_kernel
from mixerlab.kernels.parallax.triton_tiles import descriptor, for_copy_engine, pair_descriptor


class Tiles(NamedTuple):
    """How many queries and keys a tile has, and with how many warps and pipeline stages a program runs."""

    queries: int
    keys: int
    warps: int
    stages: int


# Of the forward and dq, and of dkv, by the width of a tile; the best of about 20 choices each on an H200.
# Programs of one warp group, two or three to a multiprocessor, are faster than larger tiles: while one waits, another
# computes.
QUERY_TILES = {16: Tiles(64, 64, 4, 3), 32: Tiles(64, 64, 4, 3), 64: Tiles(64, 64, 4, 3), 128: Tiles(64, 64, 4, 2)}
KEY_TILES = {16: Tiles(32, 64, 4, 2), 32: Tiles(32, 64, 4, 2), 64: Tiles(32, 64, 4, 3), 128: Tiles(32, 64, 4, 3)}
# Up to this length one program holds a sequence, as one or two tiles of 64 positions. In the backward two tiles of
# width 128 would not fit in registers: there it is one tile of 128 positions, with twice the warps.
SHORT_LENGTH = 128
# Full-precision products do not use the tensor cores, so these tiles only have to fit.
FLOAT32_TILES = Tiles(32, 32, 4, 2)


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
    o = parallax_forward(q, rho, k, v, scale, window)[0]
    return o[..., :head_dim] if missing else o


@operator("parallax_forward")
def parallax_forward(q, rho, k, v, scale: float, window: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output `[B, T, Hq, D]`, and for the backward Σ p v and Σ_KV ρ, both the same shape.

    Then for each query, float32 `[B, Hq, T]` with T rounded up to whole tiles: the log-sum-exp in base 2, and
    scale (1 + t̄).
    """
    q, rho, k, v = map(for_copy_engine, (q, rho, k, v))
    batch, length, heads, head_dim = q.shape
    o, mean_v, cov, lse, weight_at_0 = results = _forward_results(q, rho, k, v, scale, window)
    tiles = _tiles(QUERY_TILES, q)
    forward_kernel[(triton.cdiv(length, tiles.queries) * batch * heads,)](
        *(q, q.stride(), rho, rho.stride()),
        *(descriptor(x, tiles.keys) for x in (k, v)),
        *(descriptor(x, tiles.queries) for x in (o, mean_v, cov)),
        *(lse, weight_at_0),
        *(heads, length, head_dim, window, scale, scale * LOG2_E.value),
        **_constants(q, k, tiles),
    )
    return results


@parallax_forward.register_fake
def _forward_results(q, rho, k, v, scale, window):
    batch, length, heads, _ = q.shape
    tile = _tiles(QUERY_TILES, q).queries
    room = triton.cdiv(length, tile) * tile
    # Σ p v stays in float32: the backward subtracts dO·v from dO·(Σ p v), and for a query that attends to one key the
    # two are equal.
    mean_v = q.new_empty(q.shape, dtype=torch.float32)
    lse, weight_at_0 = (q.new_empty(batch, heads, room, dtype=torch.float32) for _ in range(2))
    return q.new_empty(q.shape), mean_v, q.new_empty(q.shape), lse, weight_at_0


@operator("parallax_backward", like="q rho k v")
def parallax_backward(d_o, q, rho, k, v, mean_v, cov, lse, weight_at_0, scale: float, window: int | None):
    """dQ, dR, dK and dV."""
    d_o, q, rho, k, v = map(for_copy_engine, (d_o, q, rho, k, v))
    batch, length, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    d_q, d_rho, d_k, d_v = (x.new_empty(x.shape) for x in (q, rho, k, v))
    beta, gamma = torch.empty_like(lse), torch.empty_like(lse)
    tiles = _tiles(QUERY_TILES, q)
    room = tiles.queries  # of the forward too, and a multiple of those of dkv
    per_query = (lse, weight_at_0, beta, gamma)
    sizes = (length, head_dim, window, scale, scale * LOG2_E.value)

    preprocess_kernel[(triton.cdiv(length, room) * batch * heads,)](
        *(d_o, d_o.stride(), mean_v, cov, cov.stride(), beta, gamma),
        *(heads, length, head_dim, scale),
        BLOCK_M=room,
        BLOCK_D=padded_head_dim(head_dim),
    )
    dq_kernel[(triton.cdiv(length, room) * batch * heads,)](
        *(q, q.stride(), rho, rho.stride()),
        *(descriptor(x, tiles.keys) for x in (k, v)),
        *(d_o, d_o.stride()),
        *per_query,
        *(descriptor(x, tiles.queries) for x in (d_q, d_rho)),
        *(heads, *sizes),
        **_constants(q, k, tiles),
    )
    tiles = _tiles(KEY_TILES, q)
    dkv_kernel[(triton.cdiv(length, tiles.keys) * batch * kv_heads,)](
        pair_descriptor(q, rho, tiles.queries),
        *(k, k.stride(), v, v.stride()),
        descriptor(d_o, tiles.queries),
        *per_query,
        *(descriptor(x, tiles.keys) for x in (d_k, d_v)),
        *(kv_heads, *sizes),
        ROOM=room,
        **_constants(q, k, tiles),
    )
    return d_q, d_rho, d_k, d_v


@operator("parallax_short_forward", like="q")
def parallax_short_forward(q, rho, k, v, scale: float):
    """The output of a short sequence (`is_short`), by one program for each head."""
    o = q.new_empty(q.shape)
    batch, length, heads, head_dim = q.shape
    short_forward_kernel[(batch * heads,)](
        *with_strides(*map(unit_stride, (q, rho, k, v)), o),
        *(heads, length, head_dim, scale * LOG2_E.value),
        **short_constants(q, 64),
    )
    return o


@operator("parallax_short_backward", like="q rho k v")
def parallax_short_backward(d_o, q, rho, k, v, scale: float):
    """dQ, dR, dK and dV, from the inputs and dO only."""
    d_q, d_rho, d_k, d_v = (x.new_empty(x.shape) for x in (q, rho, k, v))
    batch, length, heads, head_dim = q.shape
    short_backward_kernel[(batch * heads,)](
        *with_strides(*map(unit_stride, (d_o, q, rho, k, v)), d_q, d_rho, d_k, d_v),
        *(heads, length, head_dim, scale, scale * LOG2_E.value),
        **short_constants(q, 128 if head_dim > 64 and length > 64 else 64),
    )
    return d_q, d_rho, d_k, d_v


def is_short(q: Tensor, k: Tensor, window: int | None) -> bool:
    """Whether the kernels of `triton_short.py` run: for sequences that fit in the registers of one program.

    Not for float32, whose products need more registers, and not for shared key heads, whose gradients would have to be
    summed over several programs.
    """
    return q.shape[1] <= SHORT_LENGTH and q.dtype.itemsize == 2 and q.shape == k.shape and window is None


def _tiles(choices: dict[int, Tiles], q: Tensor) -> Tiles:
    return FLOAT32_TILES if q.dtype == torch.float32 else choices[padded_head_dim(q.shape[3])]


def _constants(q: Tensor, k: Tensor, tiles: Tiles) -> dict:
    """The compile-time arguments that every kernel takes."""
    return {
        "GROUP": q.shape[2] // k.shape[2],
        "BLOCK_M": tiles.queries,
        "BLOCK_N": tiles.keys,
        "BLOCK_D": padded_head_dim(q.shape[3]),
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


register_gradient(parallax_forward, parallax_backward)
register_gradient(parallax_short_forward, parallax_short_backward)
