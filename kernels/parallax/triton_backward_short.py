"""The backward of a short sequence: all keys of a head lie in one tile, so one launch does everything.

A program holds K and V of one head and walks over its queries. It sees whole rows of weights: the forward
saves nothing for it, no score is formed twice (8 products a pair instead of 11), and β, γ and t̄ are sums
in float32 over the tile. The formulas are those of `triton_backward.py`.
"""

import triton
import triton.language as tl

from kernels.parallax.triton_tiles import load_tile, store_tile, visible


@triton.jit
def short_kernel(
    q_desc, rho_desc, k_desc, v_desc, d_o_desc, d_q_desc, d_rho_desc, d_k_desc, d_v_desc,
    kv_heads, seq_len, window, scale, scale_log2,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ, dR, dK and dV of one key head and the query heads that share it; BLOCK_N >= seq_len."""
    batch = tl.program_id(0) // kv_heads
    kv_head = tl.program_id(0) % kv_heads
    keys = tl.arange(0, BLOCK_N)
    k = load_tile(k_desc, batch, kv_head, 0, BLOCK_N, BLOCK_D)
    v = load_tile(v_desc, batch, kv_head, 0, BLOCK_N, BLOCK_D)
    d_k = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    d_v = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for head in range(kv_head * GROUP, (kv_head + 1) * GROUP):
        for start in range(0, seq_len, BLOCK_M):
            q = load_tile(q_desc, batch, head, start, BLOCK_M, BLOCK_D)
            rho = load_tile(rho_desc, batch, head, start, BLOCK_M, BLOCK_D)
            d_o = load_tile(d_o_desc, batch, head, start, BLOCK_M, BLOCK_D)
            queries = start + tl.arange(0, BLOCK_M)
            logits = tl.dot(q, k.T, input_precision=PRECISION) * scale_log2
            seen = visible(queries[:, None], keys[None, :], seq_len, window, CAUSAL, HAS_WINDOW)
            # Finite, so that the queries past the end, which may see no key, make no NaN.
            logits = tl.where(seen, logits, -1.0e30)
            p = tl.exp2(logits - tl.max(logits, 1)[:, None])
            p = p / tl.sum(p, 1)[:, None]
            t = tl.dot(rho, k.T, input_precision=PRECISION)
            t -= tl.sum(p * t, 1)[:, None]
            a = tl.dot(d_o, v.T, input_precision=PRECISION)
            g2 = p * (tl.sum(p * a, 1)[:, None] - a)
            gamma = -tl.sum(g2 * t, 1)
            weight = 1 - t
            g1 = (p * gamma[:, None] - g2 * weight) * scale
            d_v = tl.dot((p * weight).to(v.dtype).T, d_o, d_v, input_precision=PRECISION)
            g2 = g2.to(k.dtype)
            g1 = g1.to(k.dtype)
            d_k = tl.dot(g2.T, rho, d_k, input_precision=PRECISION)
            d_k = tl.dot(g1.T, q, d_k, input_precision=PRECISION)
            d_rho = tl.dot(g2, k, input_precision=PRECISION)
            d_q = tl.dot(g1, k, input_precision=PRECISION)
            store_tile(d_q_desc, batch, head, start, d_q, BLOCK_M, BLOCK_D)
            store_tile(d_rho_desc, batch, head, start, d_rho, BLOCK_M, BLOCK_D)
    store_tile(d_k_desc, batch, kv_head, 0, d_k, BLOCK_N, BLOCK_D)
    store_tile(d_v_desc, batch, kv_head, 0, d_v, BLOCK_N, BLOCK_D)
