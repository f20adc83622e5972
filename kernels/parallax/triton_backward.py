"""The streamed backward kernels: the closed form of the Parallax paper's appendix, in tiles.

Per query, three scalars stand for the output's gradient dO: β = dO·(Σ p v), and γ = dO·Σ_KV ρ, which the
forward's saved mean and covariance give, and t̄. With a = dO·v, the coefficients of a pair are

    g2 = p (β - a)        g1 = p γ - g2 (1 + t̄ - t)

    dQ = scale Σ g1 k    dR = Σ g2 k    dK = Σ scale g1 q + g2 ρ    dV = Σ p (1 + t̄ - t) dO
"""

import triton
import triton.language as tl

from kernels.parallax.triton_tiles import load_tile, seen_span, store_tile, visible


@triton.jit
def dot_rows_kernel(
    d_o_desc, mean_v_desc, cov_desc, beta, gamma, heads, seq_len,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """β and γ of every query."""
    blocks = tl.cdiv(seq_len, BLOCK_M)
    sequence = tl.program_id(0) // blocks
    batch = sequence // heads
    head = sequence % heads
    start = tl.program_id(0) % blocks * BLOCK_M
    d_o = load_tile(d_o_desc, batch, head, start, BLOCK_M, BLOCK_D).to(tl.float32)
    mean_v = load_tile(mean_v_desc, batch, head, start, BLOCK_M, BLOCK_D)
    cov = load_tile(cov_desc, batch, head, start, BLOCK_M, BLOCK_D).to(tl.float32)
    queries = start + tl.arange(0, BLOCK_M)
    row = sequence.to(tl.int64) * seq_len + queries
    tl.store(beta + row, tl.sum(d_o * mean_v, 1), mask=queries < seq_len)
    tl.store(gamma + row, tl.sum(d_o * cov, 1), mask=queries < seq_len)


@triton.jit
def _rows(
    d_q, d_rho, q, rho, d_o, log_mass, mean_t, beta, gamma,
    k_desc, v_desc, batch, kv_head, queries, first, last, seq_len, window, scale_log2,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what the keys `first .. last` give to dQ / scale and dR."""
    for start in range(first, last, BLOCK_N):
        k = load_tile(k_desc, batch, kv_head, start, BLOCK_N, BLOCK_D)
        v = load_tile(v_desc, batch, kv_head, start, BLOCK_N, BLOCK_D)
        logits = tl.dot(q, k.T, input_precision=PRECISION)
        t = tl.dot(rho, k.T, input_precision=PRECISION)
        a = tl.dot(d_o, v.T, input_precision=PRECISION)
        p = tl.exp2(logits * scale_log2 - log_mass[:, None])
        if MASKED:
            keys = start + tl.arange(0, BLOCK_N)
            seen = visible(queries[:, None], keys[None, :], seq_len, window, CAUSAL, HAS_WINDOW)
            p = tl.where(seen, p, 0.0)
        g2 = p * (beta[:, None] - a)
        g1 = p * gamma[:, None] - g2 * ((1 + mean_t[:, None]) - t)
        d_rho = tl.dot(g2.to(k.dtype), k, d_rho, input_precision=PRECISION)
        d_q = tl.dot(g1.to(k.dtype), k, d_q, input_precision=PRECISION)
    return d_q, d_rho


@triton.jit
def rows_kernel(
    q_desc, rho_desc, k_desc, v_desc, d_o_desc, log_mass, mean_t, beta, gamma, d_q_desc, d_rho_desc,
    heads, seq_len, window, scale, scale_log2,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dQ and dR of a block of queries."""
    blocks = tl.cdiv(seq_len, BLOCK_M)
    sequence = tl.program_id(0) // blocks
    batch = sequence // heads
    head = sequence % heads
    # The last queries see the most keys: they start first, so that the short blocks fill the gaps.
    start_m = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    kv_head = head // GROUP
    queries = start_m + tl.arange(0, BLOCK_M)
    inside = queries < seq_len
    row = sequence.to(tl.int64) * seq_len + queries

    q = load_tile(q_desc, batch, head, start_m, BLOCK_M, BLOCK_D)
    rho = load_tile(rho_desc, batch, head, start_m, BLOCK_M, BLOCK_D)
    d_o = load_tile(d_o_desc, batch, head, start_m, BLOCK_M, BLOCK_D)
    # An infinite mass: the queries past the end weigh every key 0.
    log_mass_m = tl.load(log_mass + row, mask=inside, other=float("inf"))
    mean_t_m = tl.load(mean_t + row, mask=inside, other=0.0)
    beta_m = tl.load(beta + row, mask=inside, other=0.0)
    gamma_m = tl.load(gamma + row, mask=inside, other=0.0)
    d_q = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    d_rho = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)

    first, full, full_last, last = seen_span(
        start_m, seq_len, window, CAUSAL, HAS_WINDOW, BLOCK_M, BLOCK_N
    )
    if HAS_WINDOW:
        d_q, d_rho = _rows(
            d_q, d_rho, q, rho, d_o, log_mass_m, mean_t_m, beta_m, gamma_m,
            k_desc, v_desc, batch, kv_head, queries, first, full, seq_len, window, scale_log2,
            CAUSAL, HAS_WINDOW, True, BLOCK_N, BLOCK_D, PRECISION,
        )  # fmt: skip
    d_q, d_rho = _rows(
        d_q, d_rho, q, rho, d_o, log_mass_m, mean_t_m, beta_m, gamma_m,
        k_desc, v_desc, batch, kv_head, queries, full, full_last, seq_len, window, scale_log2,
        CAUSAL, HAS_WINDOW, False, BLOCK_N, BLOCK_D, PRECISION,
    )  # fmt: skip
    d_q, d_rho = _rows(
        d_q, d_rho, q, rho, d_o, log_mass_m, mean_t_m, beta_m, gamma_m,
        k_desc, v_desc, batch, kv_head, queries, full_last, last, seq_len, window, scale_log2,
        CAUSAL, HAS_WINDOW, True, BLOCK_N, BLOCK_D, PRECISION,
    )  # fmt: skip
    store_tile(d_q_desc, batch, head, start_m, d_q * scale, BLOCK_M, BLOCK_D)
    store_tile(d_rho_desc, batch, head, start_m, d_rho, BLOCK_M, BLOCK_D)


@triton.jit
def _columns(
    d_k, d_v, k, v, q_desc, rho_desc, d_o_desc, log_mass, mean_t, beta, gamma,
    batch, head, row_start, keys, first, last, seq_len, window, scale, scale_log2,
    CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds what the queries `first .. last` give to dK and scale dV; tiles are [keys, queries]."""
    for start in range(first, last, BLOCK_M):
        q = load_tile(q_desc, batch, head, start, BLOCK_M, BLOCK_D)
        rho = load_tile(rho_desc, batch, head, start, BLOCK_M, BLOCK_D)
        d_o = load_tile(d_o_desc, batch, head, start, BLOCK_M, BLOCK_D)
        queries = start + tl.arange(0, BLOCK_M)
        inside = queries < seq_len
        # An infinite mass: the queries past the end weigh every key 0.
        log_mass_m = tl.load(log_mass + row_start + queries, mask=inside, other=float("inf"))
        mean_t_m = tl.load(mean_t + row_start + queries, mask=inside, other=0.0)
        beta_m = tl.load(beta + row_start + queries, mask=inside, other=0.0)
        gamma_m = tl.load(gamma + row_start + queries, mask=inside, other=0.0)
        logits = tl.dot(k, q.T, input_precision=PRECISION)
        t = tl.dot(k, rho.T, input_precision=PRECISION)
        a = tl.dot(v, d_o.T, input_precision=PRECISION)
        p = tl.exp2(logits * scale_log2 - log_mass_m[None, :])
        if MASKED:
            seen = visible(queries[None, :], keys[:, None], seq_len, window, CAUSAL, HAS_WINDOW)
            p = tl.where(seen, p, 0.0)
        # The scale rides on 1 + t̄ - t, where it costs nothing: g1 gets it, and dV gives it back at the end.
        weight = (scale * (1 + mean_t_m))[None, :] - t * scale
        d_v = tl.dot((p * weight).to(q.dtype), d_o, d_v, input_precision=PRECISION)
        g2 = p * (beta_m[None, :] - a)
        g1 = p * (scale * gamma_m)[None, :] - g2 * weight
        d_k = tl.dot(g2.to(q.dtype), rho, d_k, input_precision=PRECISION)
        d_k = tl.dot(g1.to(q.dtype), q, d_k, input_precision=PRECISION)
    return d_k, d_v


@triton.jit
def columns_kernel(
    q_desc, rho_desc, k_desc, v_desc, d_o_desc, log_mass, mean_t, beta, gamma, d_k_desc, d_v_desc,
    kv_heads, seq_len, window, scale, scale_log2,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, HAS_WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dK and dV of a block of keys, summed over the query heads that share them."""
    blocks = tl.cdiv(seq_len, BLOCK_N)
    sequence = tl.program_id(0) // blocks
    batch = sequence // kv_heads
    kv_head = sequence % kv_heads
    start_n = tl.program_id(0) % blocks * BLOCK_N
    keys = start_n + tl.arange(0, BLOCK_N)
    k = load_tile(k_desc, batch, kv_head, start_n, BLOCK_N, BLOCK_D)
    v = load_tile(v_desc, batch, kv_head, start_n, BLOCK_N, BLOCK_D)
    d_k = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    d_v = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)

    # Queries `first .. last` are visited; those of `full .. full_last` see every key of the block.
    first = 0
    full = 0
    last = seq_len
    full_last = seq_len
    if CAUSAL:
        first = start_n // BLOCK_M * BLOCK_M
        full = tl.cdiv(start_n + BLOCK_N, BLOCK_M) * BLOCK_M
        if HAS_WINDOW:
            last = tl.minimum(start_n + BLOCK_N - 1 + window, seq_len)
            full_last = tl.maximum((start_n + window) // BLOCK_M * BLOCK_M, full)

    for head in range(kv_head * GROUP, (kv_head + 1) * GROUP):
        row_start = (batch * kv_heads * GROUP + head).to(tl.int64) * seq_len
        if CAUSAL:
            d_k, d_v = _columns(
                d_k, d_v, k, v, q_desc, rho_desc, d_o_desc, log_mass, mean_t, beta, gamma, batch, head,
                row_start, keys, first, tl.minimum(full, last), seq_len, window, scale, scale_log2,
                CAUSAL, HAS_WINDOW, True, BLOCK_M, BLOCK_D, PRECISION,
            )  # fmt: skip
        d_k, d_v = _columns(
            d_k, d_v, k, v, q_desc, rho_desc, d_o_desc, log_mass, mean_t, beta, gamma, batch, head,
            row_start, keys, full, tl.minimum(full_last, last), seq_len, window, scale, scale_log2,
            CAUSAL, HAS_WINDOW, False, BLOCK_M, BLOCK_D, PRECISION,
        )  # fmt: skip
        if HAS_WINDOW:
            d_k, d_v = _columns(
                d_k, d_v, k, v, q_desc, rho_desc, d_o_desc, log_mass, mean_t, beta, gamma, batch, head,
                row_start, keys, full_last, last, seq_len, window, scale, scale_log2,
                CAUSAL, HAS_WINDOW, True, BLOCK_M, BLOCK_D, PRECISION,
            )  # fmt: skip
    store_tile(d_k_desc, batch, kv_head, start_n, d_k, BLOCK_N, BLOCK_D)
    store_tile(d_v_desc, batch, kv_head, start_n, d_v / scale, BLOCK_N, BLOCK_D)
