"""Forward and backward of a short sequence. A program holds a whole sequence of one head, and nothing is saved.

A sequence is one or two tiles of positions. The weights of a query are all in registers. So the maximum, the sum and
t̄, and in the backward β and γ, are plain reductions: there is no running mean and no second pass, and no score is
computed twice (the backward has 8 products for each pair of tiles instead of 11). The formulas are those of
`README.md`:

    o = Σ p w v,  w = 1 + t̄ - t        g2 = p (β - a)        g1 = p γ - g2 w,  γ = Σ g2 (t̄ - t)
"""

# ruff: noqa: RUF005 - Triton compiles `a + (b,)` but not `(*a, b)`.

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_attention import (
    dot,
    load_sequence,
    softmax_and_gradient,
    softmax_weights,
    store_rows,
)


@triton.jit
def short_forward_kernel(
    q, q_strides, rho, rho_strides, k, k_strides, v, v_strides, o, o_strides,
    heads, seq_len, head_dim, scale_log2,
    TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The output of one sequence of one head."""
    batch = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    ks = load_sequence(k, k_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    qs = load_sequence(q, q_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    rhos = load_sequence(rho, rho_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    vs = load_sequence(v, v_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    for ROW in tl.static_range(TILES - 1, -1, -1):
        rows = ROW * BLOCK + tl.arange(0, BLOCK)
        weights, t, inverse_sum, mean_t = softmax_weights(qs[ROW], ks, rhos[ROW], ROW, scale_log2, BLOCK)
        total = tl.zeros([BLOCK, BLOCK_D], tl.float32)
        for j in tl.static_range(ROW + 1):
            total = dot((weights[j] * ((1 + mean_t)[:, None] - t[j])).to(v.dtype.element_ty), vs[j], total)
        store_rows(o, o_strides, batch, head, rows, total * inverse_sum[:, None], seq_len, head_dim, BLOCK_D)


@triton.jit
def short_backward_kernel(
    d_o, d_o_strides, q, q_strides, rho, rho_strides, k, k_strides, v, v_strides,
    d_q, d_q_strides, d_rho, d_rho_strides, d_k, d_k_strides, d_v, d_v_strides,
    heads, seq_len, head_dim, scale, scale_log2,
    TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    half = q.dtype.element_ty
    ks = load_sequence(k, k_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    qs = load_sequence(q, q_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    rhos = load_sequence(rho, rho_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    vs = load_sequence(v, v_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    d_os = load_sequence(d_o, d_o_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    d_ks = (tl.zeros([BLOCK, BLOCK_D], tl.float32),) * TILES
    d_vs = (tl.zeros([BLOCK, BLOCK_D], tl.float32),) * TILES
    # The last queries first: then the gradients of the last keys are complete after the first round.
    for ROW in tl.static_range(TILES - 1, -1, -1):
        rows = ROW * BLOCK + tl.arange(0, BLOCK)
        weights, t, inverse_sum, mean_t = softmax_weights(qs[ROW], ks, rhos[ROW], ROW, scale_log2, BLOCK)
        p, a, beta = softmax_and_gradient(weights, inverse_sum, d_os[ROW], vs, ROW, BLOCK)
        # The scale is multiplied into t - t̄ - 1, which costs nothing. g1 needs it, and dV is divided by it at the end.
        g2: tl.tuple = ()
        u: tl.tuple = ()
        gamma = tl.zeros([BLOCK], tl.float32)
        for j in tl.static_range(ROW + 1):
            x = p[j] * (beta[:, None] - a[j])
            y = t[j] * scale - (scale * (1 + mean_t))[:, None]
            gamma -= tl.sum(x * y, 1)
            g2 += (x,)
            u += (y,)
        d_q_tile = tl.zeros([BLOCK, BLOCK_D], tl.float32)
        d_rho_tile = tl.zeros([BLOCK, BLOCK_D], tl.float32)
        weight: tl.tuple = ()
        g1: tl.tuple = ()
        g2_half: tl.tuple = ()
        for j in tl.static_range(ROW + 1):
            g1 += ((p[j] * gamma[:, None] + g2[j] * u[j]).to(half),)
            g2_half += (g2[j].to(half),)
            weight += ((p[j] * u[j]).to(half),)
        for j in tl.static_range(ROW + 1):
            d_rho_tile = dot(g2_half[j], ks[j], d_rho_tile)
            d_q_tile = dot(g1[j], ks[j], d_q_tile)
        store_rows(d_q, d_q_strides, batch, head, rows, d_q_tile, seq_len, head_dim, BLOCK_D)
        store_rows(d_rho, d_rho_strides, batch, head, rows, d_rho_tile, seq_len, head_dim, BLOCK_D)
        # The last keys first: no earlier query sees them, so their gradients are complete and need no more registers.
        earlier_d_ks: tl.tuple = ()
        earlier_d_vs: tl.tuple = ()
        for j in tl.static_range(ROW, -1, -1):
            d_v_tile = dot(weight[j].T, d_os[ROW], d_vs[j])
            d_k_tile = dot(g2_half[j].T, rhos[ROW], d_ks[j])
            d_k_tile = dot(g1[j].T, qs[ROW], d_k_tile)
            if j == ROW:
                store_rows(d_v, d_v_strides, batch, head, rows, d_v_tile / -scale, seq_len, head_dim, BLOCK_D)
                store_rows(d_k, d_k_strides, batch, head, rows, d_k_tile, seq_len, head_dim, BLOCK_D)
            else:
                earlier_d_ks = (d_k_tile,) + earlier_d_ks
                earlier_d_vs = (d_v_tile,) + earlier_d_vs
        d_ks = earlier_d_ks
        d_vs = earlier_d_vs
