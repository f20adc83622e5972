"""The decode kernel as a PyTorch operator, for CUDA graphs and `torch.compile`."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.device import launches_early, on_nvidia, processors
from mixerlab.kernels.common.registration import operator
from mixerlab.kernels.common.triton_attention import padded_head_dim, with_strides
from mixerlab.kernels.common.triton_elementwise import LOG2_E
from mixerlab.kernels.parallax.decode.triton_decode import MERGED_COLUMNS, STATISTICS, decode_kernel, merge_kernel

WHOLE = 128  # keys that one program reads at once


@operator("parallax_decode", like="q", refusal="parallax_decode cannot be differentiated: use parallax_attention")
def decode(q, rho, k_cache, v_cache, lengths: Tensor | None, scale: float, window: int | None):
    """`parallax_decode` by the kernel; see there."""
    if window is not None:
        window = min(window, k_cache.shape[1])  # a larger one is the same, but may not fit in 32 bits
    batch, tokens, heads, head_dim = q.shape
    cache_len, kv_heads = k_cache.shape[1:3]
    group = heads // kv_heads
    queries = triton.next_power_of_2(tokens * group)
    width = padded_head_dim(head_dim)
    keys = min(cache_len, window + tokens) if window else cache_len
    plan = _plan(keys, batch * kv_heads, processors(q.device), width * q.dtype.itemsize, queries)
    parts = plan.parts
    early = parts > 1 and launches_early(q.device)
    o = q.new_empty(q.shape)
    places = batch * kv_heads * parts * queries if parts > 1 else 0
    workspace = q.new_empty(places * (2 * width + STATISTICS.value), dtype=torch.float32)
    statistics = workspace[places * 2 * width :]
    decode_kernel[(batch * kv_heads, parts)](
        *with_strides(*map(unit_stride, (q, rho, k_cache, v_cache)), o),
        *(workspace, statistics, None if lengths is None else lengths.contiguous()),
        *(tokens, kv_heads, cache_len, head_dim, scale * LOG2_E.value, window, parts),
        GROUP=group,
        QUERIES=queries,
        ROWS=max(8, queries),  # with ρ below q the 16 rows that a product needs
        MERGES=parts > 1,
        EARLY=early,
        BLOCK_N=plan.block_n,
        BLOCK_D=width,
        PREFETCHES=parts * plan.block_n >= keys and on_nvidia(q.device),
        num_warps=plan.warps if queries <= 8 else max(4, plan.warps),
        num_stages=plan.stages,
    )
    if parts > 1:
        merge_kernel[(batch * kv_heads, tokens * group, triton.cdiv(head_dim, MERGED_COLUMNS.value))](
            *(workspace, statistics, *with_strides(o), kv_heads, head_dim, parts),
            GROUP=group,
            QUERIES=queries,
            EARLY=early,
            MAX_PARTS=triton.next_power_of_2(parts),
            BLOCK_D=width,
            **({"launch_pdl": True} if early else {}),
        )
    return o


class Plan(NamedTuple):
    """How the cache of one sequence and key head is read: parts, keys of a tile, warps and stages of a program."""

    parts: int
    block_n: int
    warps: int
    stages: int


def _plan(keys: int, heads: int, card: int, key_bytes: int, queries: int) -> Plan:
    """A rule for `keys` of `key_bytes`, and as many heads (in all sequences), on so many processors.

    Two programs to a processor keep its memory requests in flight, so the caches of fewer heads are divided. More heads
    are a part each: merging costs more than an uneven last wave. Six programs of small tiles fit on a processor, four
    with a stage more, three of larger tiles, which read faster where the waves are many.
    """
    small, large = (max(16, min(most, tile // key_bytes)) for most, tile in ((64, 8192), (128, 16384)))
    if heads <= card and keys <= WHOLE and queries <= 128:  # with more, so large a tile exceeds the shared memory
        return Plan(1, min(WHOLE, max(16, 2**15 // key_bytes)), 4, 2)
    if 2 * card < 3 * heads <= 3 * card:
        return Plan(1, large, 4, 3)
    if heads <= 2 * card:
        blocks = triton.cdiv(keys, small)
        wanted = min(2 * card // heads, blocks)
        return Plan(triton.cdiv(blocks, triton.cdiv(blocks, wanted)), small, 2, 3)
    if heads <= 6 * card:
        return Plan(1, small, 2, 3)
    if heads <= 8 * card:
        return Plan(1, small, 2, 4)
    return Plan(1, large, 4, 3) if keys > large else Plan(1, small, 2, 3)
