"""The forward kernel: one pass over K and V per block of queries (Parallax paper, algorithm 1).

The paper accumulates Σ p t v beside Σ p v and subtracts t̄ Σ p v at the end. With long probes or sharp logits that
difference loses all its digits in bfloat16. So t is centred on its running mean before it is rounded, and the sum is
corrected whenever the mean changes (Welford's method):

    t̄' = (α d t̄ + Σ_block p t) / d'        Σ' = α (Σ - (t̄' - t̄) Σ p v) + Σ_block p (t - t̄') v
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_attention import dot, load_rows
from mixerlab.kernels.parallax.triton_tiles import key_bounds, load_tile, query_offset, store_tile, visible


@triton.jit
def forward_kernel(
    q, q_strides, rho, rho_strides, k_desc, v_desc, o_desc, mean_v_desc, cov_desc, lse, weight_at_0,
    heads, seq_len, head_dim, window, scale, scale_log2,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(seq_len, BLOCK_M)
    sequence = tl.program_id(0) // blocks
    batch = sequence // heads
    head = sequence % heads
    # The last queries see the most keys. They start first, so that the shorter blocks fill the gaps at the end.
    start_m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    kv_head = head // GROUP
    queries = start_m + tl.arange(0, BLOCK_M)

    q = load_rows(q, q_strides, batch, head, queries, seq_len, head_dim, BLOCK_D)
    rho = load_rows(rho, rho_strides, batch, head, queries, seq_len, head_dim, BLOCK_D)
    mean_v = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    cov = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Finite and positive: a query that has not seen a key yet must not give NaN. Its first key decays both to 0.
    row_sum = tl.full([BLOCK_M], 1.0e-30, tl.float32)
    row_max = tl.full([BLOCK_M], -1.0e30, tl.float32)
    mean_t = tl.zeros([BLOCK_M], tl.float32)

    bounds = key_bounds(start_m, seq_len, window, BLOCK_M, BLOCK_N)
    for i in tl.static_range(1 if window is None else 0, 3):
        for start in range(bounds[i], bounds[i + 1], BLOCK_N):
            k = load_tile(k_desc, batch, kv_head, start, BLOCK_N, BLOCK_D)
            logits = dot(q, k.T)
            t = dot(rho, k.T)
            if i != 1:
                keys = start + tl.arange(0, BLOCK_N)
                seen = visible(queries[:, None], keys[None, :], window)
                logits = tl.where(seen, logits, float("-inf"))
            # The maximum is scaled before it is subtracted: so all weights of a row share its rounding, and the
            # exponent takes one multiply-add for each pair.
            new_row_max = tl.maximum(row_max, tl.max(logits, 1) * scale_log2)
            p = tl.exp2(logits * scale_log2 - new_row_max[:, None])
            decay = tl.exp2(row_max - new_row_max)
            row_max = new_row_max
            kept = row_sum * decay
            row_sum = kept + tl.sum(p, 1)
            weighted_t = p * t
            new_mean_t = (kept * mean_t + tl.sum(weighted_t, 1)) / row_sum
            shift = new_mean_t - mean_t
            mean_t = new_mean_t
            weighted_t -= p * mean_t[:, None]
            v = load_tile(v_desc, batch, kv_head, start, BLOCK_N, BLOCK_D)
            cov = (cov - mean_v * shift[:, None]) * decay[:, None]
            cov = dot(weighted_t.to(v.dtype), v, cov)
            mean_v = dot(p.to(v.dtype), v, mean_v * decay[:, None])

    inverse_sum = 1 / row_sum  # one division for each query, not for each element
    mean_v *= inverse_sum[:, None]
    cov *= inverse_sum[:, None]
    store_tile(o_desc, batch, head, start_m, mean_v - cov, BLOCK_M, BLOCK_D)
    store_tile(mean_v_desc, batch, head, start_m, mean_v, BLOCK_M, BLOCK_D)
    store_tile(cov_desc, batch, head, start_m, cov, BLOCK_M, BLOCK_D)
    row = query_offset(sequence, seq_len, BLOCK_M) + queries
    tl.store(lse + row, tl.where(queries < seq_len, row_max + tl.log2(row_sum), float("inf")))
    tl.store(weight_at_0 + row, scale * (1 + mean_t))
