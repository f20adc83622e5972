"""The dq kernel: dQ and dR of a block of queries, in one pass over K and V. Before it runs the preprocess kernel.

The formulas are those of the Parallax paper's appendix. They need two scalars for each query, which the preprocess
kernel computes from the gradient dO of its output and the mean and the covariance that the forward saved:
β = dO·(Σ p v) and γ = dO·(Σ_KV ρ). With a = dO·v,

    g2 = p (β - a)        g1 = p γ - g2 (1 + t̄ - t)        dQ = scale Σ g1 k        dR = Σ g2 k
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_attention import dot, load_rows
from mixerlab.kernels.common.triton_halves import upper_lower
from mixerlab.kernels.parallax.triton_tiles import key_bounds, load_pair, load_tile, query_offset, store_tile, visible


@triton.jit
def preprocess_kernel(
    d_o, d_o_strides, mean_v, cov, saved_strides, beta, gamma, heads, seq_len, head_dim, scale,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """β and scale γ of a block of queries."""
    blocks = tl.cdiv(seq_len, BLOCK_M)
    sequence = tl.program_id(0) // blocks
    batch = sequence // heads
    head = sequence % heads
    queries = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    d_o = load_rows(d_o, d_o_strides, batch, head, queries, seq_len, head_dim, BLOCK_D).to(tl.float32)
    mean_v = load_rows(mean_v, saved_strides, batch, head, queries, seq_len, head_dim, BLOCK_D)
    cov = load_rows(cov, saved_strides, batch, head, queries, seq_len, head_dim, BLOCK_D)
    row = query_offset(sequence, seq_len, BLOCK_M) + queries
    tl.store(beta + row, tl.sum(d_o * mean_v, 1))
    tl.store(gamma + row, tl.sum(d_o * cov, 1) * scale)


@triton.jit
def dq_kernel(
    q, q_strides, rho, rho_strides, k_desc, v_desc, d_o, d_o_strides,
    lse, weight_at_0, beta, gamma, d_q_desc, d_rho_desc,
    heads, seq_len, head_dim, window, scale, scale_log2,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dQ and dR of a block of queries."""
    blocks = tl.cdiv(seq_len, BLOCK_M)
    sequence = tl.program_id(0) // blocks
    batch = sequence // heads
    head = sequence % heads
    # The last queries see the most keys. They start first, so that the shorter blocks fill the gaps at the end.
    start_m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    kv_head = head // GROUP
    queries = start_m + tl.arange(0, BLOCK_M)
    row = query_offset(sequence, seq_len, BLOCK_M) + queries

    q_rho = load_pair(q, q_strides, rho, rho_strides, batch, head, start_m, seq_len, head_dim, BLOCK_M, BLOCK_D)
    d_o = load_rows(d_o, d_o_strides, batch, head, queries, seq_len, head_dim, BLOCK_D)
    lse_m = tl.load(lse + row)
    weight_at_0_m = tl.load(weight_at_0 + row)
    beta_m = tl.load(beta + row)
    gamma_m = tl.load(gamma + row)
    d_q = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    d_rho = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    bounds = key_bounds(start_m, seq_len, window, BLOCK_M, BLOCK_N)
    for i in tl.static_range(1 if window is None else 0, 3):
        for start in range(bounds[i], bounds[i + 1], BLOCK_N):
            k = load_tile(k_desc, batch, kv_head, start, BLOCK_N, BLOCK_D)
            v = load_tile(v_desc, batch, kv_head, start, BLOCK_N, BLOCK_D)
            logits, t = upper_lower(dot(q_rho, k.T), BLOCK_M, BLOCK_N)
            a = dot(d_o, v.T)
            if i != 1:
                keys = start + tl.arange(0, BLOCK_N)
                seen = visible(queries[:, None], keys[None, :], window)
                logits = tl.where(seen, logits, float("-inf"))
            p = tl.exp2(logits * scale_log2 - lse_m[:, None])
            g2 = p * (beta_m[:, None] - a)
            g1 = p * gamma_m[:, None] - g2 * (weight_at_0_m[:, None] - t * scale)
            d_rho = dot(g2.to(k.dtype), k, d_rho)
            d_q = dot(g1.to(k.dtype), k, d_q)
    store_tile(d_q_desc, batch, head, start_m, d_q, BLOCK_M, BLOCK_D)
    store_tile(d_rho_desc, batch, head, start_m, d_rho, BLOCK_M, BLOCK_D)
