"""The dkv kernel: dK and dV of a block of keys, in one pass over Q, ρ and dO.

    dK = Σ scale g1 q + g2 ρ        dV = Σ p (1 + t̄ - t) dO

with g1, g2, β and γ as in `triton_backward_dq.py`. Tiles are [keys, queries]: the weights come out of the first
products in the register layout that the second ones take.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_attention import dot, load_rows
from mixerlab.kernels.common.triton_halves import beside, left_right
from mixerlab.kernels.parallax.triton_tiles import load_pair_tile, load_tile, query_offset, store_tile, visible


@triton.jit
def dkv_kernel(
    q_rho_desc, k, k_strides, v, v_strides, d_o_desc, lse, weight_at_0, beta, gamma, d_k_desc, d_v_desc,
    kv_heads, seq_len, head_dim, window, scale, scale_log2,
    ROOM: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dK and dV of a block of keys, summed over the query heads that share them."""
    blocks = tl.cdiv(seq_len, BLOCK_N)
    sequence = tl.program_id(0) // blocks
    batch = sequence // kv_heads
    kv_head = sequence % kv_heads
    start_n = tl.program_id(0) % blocks * BLOCK_N
    keys = start_n + tl.arange(0, BLOCK_N)
    k_n = load_rows(k, k_strides, batch, kv_head, keys, seq_len, head_dim, BLOCK_D)
    v_n = load_rows(v, v_strides, batch, kv_head, keys, seq_len, head_dim, BLOCK_D)
    d_k = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    d_v = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)

    # The queries `first .. last` see keys of the block, and of these `full .. full_last` see all, so need no mask.
    first = start_n // BLOCK_M * BLOCK_M
    full = tl.cdiv(start_n + BLOCK_N, BLOCK_M) * BLOCK_M
    last = seq_len
    full_last = seq_len
    if window is not None:
        last = tl.minimum(start_n + BLOCK_N - 1 + window, seq_len)
        full_last = tl.maximum((start_n + window) // BLOCK_M * BLOCK_M, full)
    bounds = first, full, full_last, last

    for head in range(kv_head * GROUP, (kv_head + 1) * GROUP):
        row_start = query_offset(batch * kv_heads * GROUP + head, seq_len, ROOM)
        for i in tl.static_range(2 if window is None else 3):
            for start in range(bounds[i], tl.minimum(bounds[i + 1], last), BLOCK_M):
                q_rho = load_pair_tile(q_rho_desc, batch, head, start, BLOCK_M, BLOCK_D)
                d_o = load_tile(d_o_desc, batch, head, start, BLOCK_M, BLOCK_D)
                queries = start + tl.arange(0, BLOCK_M)
                lse_m = tl.load(lse + row_start + queries)
                weight_at_0_m = tl.load(weight_at_0 + row_start + queries)
                beta_m = tl.load(beta + row_start + queries)
                gamma_m = tl.load(gamma + row_start + queries)
                logits, t = left_right(dot(k_n, q_rho.T), BLOCK_N, BLOCK_M)
                if i != 1:
                    seen = visible(queries[None, :], keys[:, None], window)
                    logits = tl.where(seen, logits, float("-inf"))
                p = tl.exp2(logits * scale_log2 - lse_m[None, :])
                # The scale is multiplied into 1 + t̄ - t, which costs nothing. g1 needs it, and dV is divided by it at
                # the end.
                weight = weight_at_0_m[None, :] - t * scale
                d_v = dot((p * weight).to(v_n.dtype), d_o, d_v)
                a = dot(v_n, d_o.T)
                g2 = p * (beta_m[None, :] - a)
                g1 = p * gamma_m[None, :] - g2 * weight
                d_k = dot(beside(g1.to(v_n.dtype), g2.to(v_n.dtype), BLOCK_N, BLOCK_M), q_rho, d_k)
    store_tile(d_k_desc, batch, kv_head, start_n, d_k, BLOCK_N, BLOCK_D)
    store_tile(d_v_desc, batch, kv_head, start_n, d_v * (1 / scale), BLOCK_N, BLOCK_D)
