"""The delta rule with a decay for each channel in Triton; names as in `reference.py`.

What goes from chunk to chunk runs in one program for each sequence and head, with the state on the chip. What needs
only one chunk runs in a program for each chunk.

Products between positions. `exp(b_i)` and `exp(-b_j)` by themselves may underflow and overflow. At each level, a chunk
consists of blocks of two halves, and with m the last position of an upper half, `exp(b_i - b_m)` for the lower half and
`exp(b_m - b_j)` for the upper one are at most 1. One factor for each element of a key, at a level, is either the one or
the other, and each pair of positions is in the two halves of a block at one level.

Four of the six levels of a chunk of 64 only join positions within blocks of 16 on the diagonal: there tiles are
`[C / 16, 16, W]`. The exponents of a factor are sums of log decays over the steps to the middle, which are products
with matrices of 0 and 1: so they need no positions of other threads, and lie in registers where the products want them.

At the other levels tiles are the halves themselves, read where they are, and products those of corners, below and left
of the diagonal. The backward once had such products of whole chunks: then ptxas 12.8, the one in Triton 3.6 and 3.7,
read the address of an operand from a register that nothing had written.

The solution. With `X = V - (exp(b) K) S`, the errors `E = X - A U` and the writes `U = beta E`, and

    N = A (I + diag(beta) A)^{-1},   E = X - N (beta X),   d_U = G - N^T (beta G),   d_X = beta d_U

where G is the gradient of U through the output and the state. N is made of ever larger blocks on the diagonal; nothing
grows if keys repeat, and nothing is divided by beta.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_blocks import joined, store_blocks, whole
from mixerlab.kernels.common.triton_chunked import (
    chunk_rows,
    load_rows,
    split_dot,
    square,
    store_rows,
    store_state,
)
from mixerlab.kernels.gated_delta_rule.triton_kernels import halves

LOG2E = tl.constexpr(1.4426950408889634)  # log decays are taken to base 2, because exp2 takes fewer instructions


@triton.jit
def load_decays(pointer, n, pid, rows, columns, T, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """`b` of these rows and columns of chunk n; behind the end of the sequence that of its last position."""
    t = tl.minimum(n * C + rows, T - 1)
    offsets = ((pid // H).to(tl.int64) * T + t) * H + pid % H
    return tl.load(pointer + offsets[:, None] * D + columns[None, :])


@triton.jit
def load_total(pointer, n, pid, columns, T, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """These columns of `b` at the end of chunk n."""
    t = tl.minimum(n * C + C, T) - 1
    return tl.load(pointer + (((pid // H).to(tl.int64) * T + t) * H + pid % H) * D + columns)


@triton.jit
def pairs_of(level, B: tl.constexpr):
    """Where i is in the lower and j in the upper half of a block of the level: `[B, B]`."""
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    return ((i ^ j) >> level == 1) & (i > j)


@triton.jit
def steps_of(level, B: tl.constexpr):
    """Where step t is between i and the middle of its block: `[B, B]`."""
    i, t = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    return (i >> level == t >> level) & ((t <= i) == ((i >> level) & 1 == 1))


@triton.jit
def decay_over(steps, log_decay, dtype: tl.constexpr, PRECISION: tl.constexpr):
    """The decay over these steps `[B, B]`, from its logarithm at each step, `[B, W]` or `[N, B, W]`; in its shape."""
    if len(log_decay.shape) == 3:
        N: tl.constexpr = log_decay.shape[0]
        B: tl.constexpr = log_decay.shape[1]
        steps = tl.broadcast_to(steps[None, :, :], [N, B, B])
    return tl.exp2(split_dot(steps.to(dtype), log_decay, PRECISION))


@triton.jit
def load_part(pointer, n, pid, rows, columns, T, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """These rows and columns of chunk n; zeros behind the end of the sequence."""
    t = n * C + rows
    at = (((pid // H).to(tl.int64) * T + t) * H + pid % H)[:, None] * D + columns[None, :]
    return tl.load(pointer + at, mask=(t < T)[:, None], other=0.0)


@triton.jit
def grown(corner, above, below, beta_above, beta_below, PRECISION: tl.constexpr):
    """The corner of N for this corner of A, between the diagonal blocks `above` and `below` of N: `[N, B, B]`."""
    corner -= tl.dot(below, beta_below * corner, input_precision=PRECISION)
    return corner - tl.dot(corner, beta_above * above, input_precision=PRECISION)


@triton.jit
def double_blocks(
    solver, q_ptr, k_ptr, log_decay_ptr, beta, solvers_ptr, scores_ptr, n, pid, index, T, N: tl.constexpr,
    B: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, W: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Stores the corners of N and P that join their diagonal blocks in pairs; those of N, `[2 N, B, B]`, joined."""
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    rows = tl.arange(0, N * B)
    rows = rows // B * (2 * B) + rows % B
    scores, corner = tl.zeros([N, B, B], dtype=tl.float32), tl.zeros([N, B, B], dtype=tl.float32)
    for part in range(D // W):
        columns = part * W + tl.arange(0, W)
        g_above = LOG2E * load_part(log_decay_ptr, n, pid, rows, columns, T, H, D, C)
        g_below = LOG2E * load_part(log_decay_ptr, n, pid, rows + B, columns, T, H, D, C)
        to_middle = decay_over(j > i, tl.reshape(g_above, [N, B, W]), dtype, PRECISION)
        from_middle = decay_over(j <= i, tl.reshape(g_below, [N, B, W]), dtype, PRECISION)
        across = tl.reshape(load_part(k_ptr, n, pid, rows, columns, T, H, D, C), [N, B, W])
        across = tl.permute((to_middle * across).to(dtype), (0, 2, 1))
        q = tl.reshape(load_part(q_ptr, n, pid, rows + B, columns, T, H, D, C), [N, B, W])
        k = tl.reshape(load_part(k_ptr, n, pid, rows + B, columns, T, H, D, C), [N, B, W])
        scores += tl.dot((from_middle * q).to(dtype), across, input_precision=PRECISION)
        corner += tl.dot((from_middle * k).to(dtype), across, input_precision=PRECISION)
    above, below = halves(solver, N, B, B)
    beta_above, beta_below = halves(beta, N, B, 1)
    corner = grown(corner, above, below, beta_above, beta_below, PRECISION)
    zeros = tl.zeros([N, B, B], dtype=tl.float32)
    store_blocks(scores_ptr, scores, index, B, 0, N, B, 2 * B, C)
    store_blocks(scores_ptr, zeros, index, 0, B, N, B, 2 * B, C)
    store_blocks(solvers_ptr, corner, index, B, 0, N, B, 2 * B, C)
    store_blocks(solvers_ptr, zeros, index, 0, B, N, B, 2 * B, C)
    return joined(solver, corner, N, B)


@triton.jit(do_not_specialize=["T"])
def chunk_kernel(
    q_ptr,
    k_ptr,
    log_decay_ptr,
    beta_ptr,
    cumulative_ptr,
    solvers_ptr,
    scores_ptr,
    T,
    H: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per chunk, sequence and head: b to base 2, N and P."""
    n, pid = tl.program_id(0), tl.program_id(1)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    N: tl.constexpr = C // 16
    i = tl.arange(0, 16)
    beta = tl.load(beta_ptr + offsets, mask=inside, other=0.0)
    scores, between = tl.zeros([N, 16, 16], dtype=tl.float32), tl.zeros([N, 16, 16], dtype=tl.float32)
    for part in range(D // W):
        columns = part * W + tl.arange(0, W)
        at = offsets[:, None] * D + columns[None, :]
        g = LOG2E * tl.load(log_decay_ptr + at, mask=inside[:, None], other=0.0)
        tl.store(cumulative_ptr + at, tl.cumsum(g, 0), mask=inside[:, None])
        q = tl.reshape(tl.load(q_ptr + at, mask=inside[:, None], other=0.0), [N, 16, W])
        k = tl.reshape(tl.load(k_ptr + at, mask=inside[:, None], other=0.0), [N, 16, W])
        g = tl.reshape(g, [N, 16, W])
        own = tl.dot(q, tl.permute(k, (0, 2, 1)), input_precision=PRECISION)
        scores += tl.where(i[:, None] == i[None, :], own, 0.0)
        for level in tl.static_range(4):
            factor, pairs = decay_over(steps_of(level, 16), g, dtype, PRECISION), pairs_of(level, 16)
            k_there = (factor * k).to(dtype)
            across = tl.permute(k_there, (0, 2, 1))
            scores += tl.where(pairs, tl.dot((factor * q).to(dtype), across, input_precision=PRECISION), 0.0)
            between += tl.where(pairs, tl.dot(k_there, across, input_precision=PRECISION), 0.0)
    betas = tl.reshape(beta, [N, 16, 1])
    solver = tl.where(pairs_of(0, 16), between, 0.0)
    for level in tl.static_range(1, 4):
        corner = tl.where(pairs_of(level, 16), between, 0.0)
        solver += grown(corner, solver, solver, betas, betas, PRECISION)
    store_blocks(scores_ptr, scores, index, 0, 0, N, 16, 16, C)
    store_blocks(solvers_ptr, solver, index, 0, 0, N, 16, 16, C)
    for doubled in tl.static_range(LEVELS - 4):
        solver = double_blocks(
            *(solver, q_ptr, k_ptr, log_decay_ptr, beta[:, None], solvers_ptr, scores_ptr, n, pid, index, T),
            *(C >> (5 + doubled), 16 << doubled, H, D, C, W, PRECISION),
        )


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cumulative_ptr,
    beta_ptr,
    solvers_ptr,
    scores_ptr,
    out_ptr,
    states_ptr,
    writes_ptr,
    errors_ptr,
    scale,
    T,
    H: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per sequence and head: the output, and for the backward states, writes and errors."""
    pid = tl.program_id(0)
    chunks = tl.cdiv(T, C)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    state = tl.zeros([D, D], dtype=tl.float32)
    for n in range(chunks):
        inside, offsets = chunk_rows(n, pid, T, H, C)
        index = pid.to(tl.int64) * chunks + n
        b = load_decays(cumulative_ptr, n, pid, tl.arange(0, C), tl.arange(0, D), T, H, D, C)
        total = load_total(cumulative_ptr, n, pid, tl.arange(0, D), T, H, D, C)
        from_start = tl.exp2(b)
        k = load_rows(k_ptr, offsets, inside, D)
        v = load_rows(v_ptr, offsets, inside, D)
        beta = tl.load(beta_ptr + offsets, mask=inside, other=0.0)[:, None]
        held = state.to(dtype)
        store_state(states_ptr, index, n, held, D)

        error = v - tl.dot((from_start * k).to(dtype), held, input_precision=PRECISION)
        error -= split_dot(tl.load(square(solvers_ptr, index, C)), beta * error, PRECISION)
        store_rows(errors_ptr, offsets, inside, error, D)
        u = (beta * error).to(dtype)
        store_rows(writes_ptr, offsets, inside, u, D)
        k_end = (tl.exp2(total[None, :] - b) * k).to(dtype)
        state = tl.exp2(total)[:, None] * state + tl.dot(tl.trans(k_end), u, input_precision=PRECISION)

        q = load_rows(q_ptr, offsets, inside, D)
        out = tl.dot((from_start * q).to(dtype), held, input_precision=PRECISION)
        out += tl.dot(tl.load(square(scores_ptr, index, C)), u, input_precision=PRECISION)
        store_rows(out_ptr, offsets, inside, scale * out, D)


@triton.jit(do_not_specialize=["T"])
def backward_state_kernel(
    d_out_ptr,
    q_ptr,
    k_ptr,
    cumulative_ptr,
    beta_ptr,
    errors_ptr,
    solvers_ptr,
    scores_ptr,
    dv_ptr,
    d_beta_ptr,
    d_states_ptr,
    scale,
    T,
    H: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per sequence and head: dv, d beta, and the gradient of the state after each chunk."""
    pid = tl.program_id(0)
    chunks = tl.cdiv(T, C)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    d_state = tl.zeros([D, D], dtype=tl.float32)
    for back in range(chunks):
        n = chunks - 1 - back
        inside, offsets = chunk_rows(n, pid, T, H, C)
        index = pid.to(tl.int64) * chunks + n
        b = load_decays(cumulative_ptr, n, pid, tl.arange(0, C), tl.arange(0, D), T, H, D, C)
        total = load_total(cumulative_ptr, n, pid, tl.arange(0, D), T, H, D, C)
        k = load_rows(k_ptr, offsets, inside, D)
        beta = tl.load(beta_ptr + offsets, mask=inside, other=0.0)
        d_out = (scale * load_rows(d_out_ptr, offsets, inside, D)).to(dtype)
        held = d_state.to(dtype)
        store_state(d_states_ptr, index, back, held, D)

        k_end = (tl.exp2(total[None, :] - b) * k).to(dtype)
        d_u = tl.dot(k_end, held, input_precision=PRECISION)
        d_u += tl.dot(tl.trans(tl.load(square(scores_ptr, index, C))), d_out, input_precision=PRECISION)
        d_u -= split_dot(tl.trans(tl.load(square(solvers_ptr, index, C))), beta[:, None] * d_u, PRECISION)
        error = load_rows(errors_ptr, offsets, inside, D)
        tl.store(d_beta_ptr + offsets, tl.sum(error * d_u, 1), mask=inside)
        d_v = (beta[:, None] * d_u).to(dtype)
        store_rows(dv_ptr, offsets, inside, d_v, D)

        # Loaded again, because the products before need the registers that they would take.
        from_start = tl.exp2(load_decays(cumulative_ptr, n, pid, tl.arange(0, C), tl.arange(0, D), T, H, D, C))
        q = load_rows(q_ptr, offsets, inside, D)
        k = load_rows(k_ptr, offsets, inside, D)
        q_start, k_start = (from_start * q).to(dtype), (from_start * k).to(dtype)
        d_state = tl.exp2(total)[:, None] * d_state + tl.dot(tl.trans(q_start), d_out, input_precision=PRECISION)
        d_state -= tl.dot(tl.trans(k_start), d_v, input_precision=PRECISION)


@triton.jit
def through_pairs(d_scores, d_between, q, k, factor, level, PRECISION: tl.constexpr):
    """The gradients of q and k, `[N, B, W]`, through the pairs of a level in N blocks on the diagonal."""
    dtype: tl.constexpr = d_scores.dtype
    pairs = pairs_of(level, d_scores.shape[-1])
    d_scores, d_between = tl.where(pairs, d_scores, 0.0), tl.where(pairs, d_between, 0.0)
    d_between += tl.permute(d_between, (0, 2, 1))
    q, k = (factor * q).to(dtype), (factor * k).to(dtype)
    d_k = tl.dot(d_between, k, input_precision=PRECISION)
    d_k += tl.dot(tl.permute(d_scores, (0, 2, 1)), q, input_precision=PRECISION)
    return factor * tl.dot(d_scores, k, input_precision=PRECISION), factor * d_k


@triton.jit
def through_corners(
    d_out_ptr, q_ptr, k_ptr, cumulative_ptr, writes_ptr, dv_ptr, scale, columns, n, pid, T, N: tl.constexpr,
    B: tl.constexpr, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, W: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The gradients of q, and of keys as they read and as they are written, through corners of P and A: `[C, W]`.

    The corners are those that join the diagonal blocks in pairs.
    """
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    values, rows = tl.arange(0, D), tl.arange(0, N * B)
    rows = rows // B * (2 * B) + rows % B
    d_out = tl.reshape(load_part(d_out_ptr, n, pid, rows + B, values, T, H, D, C), [N, B, D])
    d_v = tl.reshape(load_part(dv_ptr, n, pid, rows + B, values, T, H, D, C), [N, B, D])
    u = tl.permute(tl.reshape(load_part(writes_ptr, n, pid, rows, values, T, H, D, C), [N, B, D]), (0, 2, 1))
    d_scores = tl.dot((scale * d_out).to(dtype), u, input_precision=PRECISION).to(dtype)
    d_between = (-tl.dot(d_v, u, input_precision=PRECISION)).to(dtype)

    middle = load_decays(cumulative_ptr, n, pid, rows // (2 * B) * (2 * B) + B - 1, columns, T, H, D, C)
    # b never grows, so no exponent is above 0.
    to_middle = tl.exp2(middle - load_decays(cumulative_ptr, n, pid, rows, columns, T, H, D, C))
    from_middle = tl.exp2(load_decays(cumulative_ptr, n, pid, rows + B, columns, T, H, D, C) - middle)
    across = (to_middle * load_part(k_ptr, n, pid, rows, columns, T, H, D, C)).to(dtype)
    q = (from_middle * load_part(q_ptr, n, pid, rows + B, columns, T, H, D, C)).to(dtype)
    k = (from_middle * load_part(k_ptr, n, pid, rows + B, columns, T, H, D, C)).to(dtype)
    across, q, k = tl.reshape(across, [N, B, W]), tl.reshape(q, [N, B, W]), tl.reshape(k, [N, B, W])
    to_middle, from_middle = tl.reshape(to_middle, [N, B, W]), tl.reshape(from_middle, [N, B, W])
    d_write = tl.dot(tl.permute(d_scores, (0, 2, 1)), q, input_precision=PRECISION)
    d_write += tl.dot(tl.permute(d_between, (0, 2, 1)), k, input_precision=PRECISION)
    d_q = from_middle * tl.dot(d_scores, across, input_precision=PRECISION)
    d_read = from_middle * tl.dot(d_between, across, input_precision=PRECISION)
    zeros = tl.zeros([N, B, W], dtype=tl.float32)
    return whole(zeros, d_q, N, B, W), whole(zeros, d_read, N, B, W), whole(to_middle * d_write, zeros, N, B, W)


@triton.jit(do_not_specialize=["T"])
def backward_chunk_kernel(
    d_out_ptr,
    q_ptr,
    k_ptr,
    log_decay_ptr,
    cumulative_ptr,
    states_ptr,
    writes_ptr,
    dv_ptr,
    d_states_ptr,
    dq_ptr,
    dk_ptr,
    d_log_decay_ptr,
    scale,
    T,
    H: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per chunk, sequence, head and W channels: dq, dk and the gradient of the log decay.

    q, and a key that reads (rows of A, and S), occur as their product with `exp(b)`; a key that is written (columns of
    P and A, and the end state) as one with `exp(-b)`. So their products with their gradients are that of b.
    """
    n, pid, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    i, columns, values = tl.arange(0, C), tl.program_id(2) * W + tl.arange(0, W), tl.arange(0, D)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * chunks + n
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    total = load_total(cumulative_ptr, n, pid, columns, T, H, D, C)
    u = load_rows(writes_ptr, offsets, inside, D)
    d_v = load_rows(dv_ptr, offsets, inside, D)
    d_out = (scale * load_rows(d_out_ptr, offsets, inside, D)).to(dtype)
    # Of the blocks on the diagonal: first, so that the tiles need no registers for long.
    N: tl.constexpr = C // 16
    across = tl.permute(tl.reshape(u, [N, 16, D]), (0, 2, 1))
    d_scores = tl.dot(tl.reshape(d_out, [N, 16, D]), across, input_precision=PRECISION).to(dtype)
    d_between = (-tl.dot(tl.reshape(d_v, [N, 16, D]), across, input_precision=PRECISION)).to(dtype)

    in_states = index * D * D + columns[:, None] * D + values[None, :]
    state = tl.load(states_ptr + in_states, mask=n + 0 * in_states > 0, other=0.0)
    d_state = tl.load(d_states_ptr + in_states, mask=chunks - 1 - n + 0 * in_states > 0, other=0.0)

    at = offsets[:, None] * D + columns[None, :]
    b = load_decays(cumulative_ptr, n, pid, i, columns, T, H, D, C)
    from_start, to_end = tl.exp2(b), tl.exp2(total[None, :] - b)
    q = tl.load(q_ptr + at, mask=inside[:, None], other=0.0)
    k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
    d_q = from_start * tl.dot(d_out, tl.trans(state), input_precision=PRECISION)
    d_read = -from_start * tl.dot(d_v, tl.trans(state), input_precision=PRECISION)
    d_write = to_end * tl.dot(u, tl.trans(d_state), input_precision=PRECISION)
    d_total = tl.sum(k * d_write, 0) + tl.exp2(total) * tl.sum(state.to(tl.float32) * d_state, 1)
    for doubled in tl.static_range(LEVELS - 4):
        to_q, to_read, to_write = through_corners(
            *(d_out_ptr, q_ptr, k_ptr, cumulative_ptr, writes_ptr, dv_ptr, scale, columns, n, pid, T),
            *(C >> (5 + doubled), 16 << doubled, H, D, C, W, PRECISION),
        )
        d_q += to_q
        d_read += to_read
        d_write += to_write
    d_k, d_b = d_read + d_write, d_read - d_write

    g = LOG2E * tl.load(log_decay_ptr + at, mask=inside[:, None], other=0.0)
    blocks_q, blocks_k, g = tl.reshape(q, [N, 16, W]), tl.reshape(k, [N, 16, W]), tl.reshape(g, [N, 16, W])
    own = tl.where(tl.arange(0, 16)[:, None] == tl.arange(0, 16)[None, :], d_scores, 0.0)
    d_q += tl.reshape(tl.dot(own, blocks_k, input_precision=PRECISION), [C, W])
    to_k = tl.reshape(tl.dot(own, blocks_q, input_precision=PRECISION), [C, W])
    d_k += to_k
    d_b -= to_k
    for level in range(4):
        factor = decay_over(steps_of(level, 16), g, dtype, PRECISION)
        blocks_d_q, blocks_d_k = through_pairs(d_scores, d_between, blocks_q, blocks_k, factor, level, PRECISION)
        to_k = tl.reshape(blocks_d_k, [C, W])
        d_q += tl.reshape(blocks_d_q, [C, W])
        d_k += to_k
        d_b += tl.where((i >> level & 1 == 1)[:, None], to_k, -to_k)
    tl.store(dq_ptr + at, d_q.to(dtype), mask=inside[:, None])
    tl.store(dk_ptr + at, d_k.to(dtype), mask=inside[:, None])
    d_b = q * d_q + k * d_b
    d_log_decay = tl.sum(d_b, 0)[None, :] - tl.cumsum(d_b, 0) + d_b + d_total[None, :]
    tl.store(d_log_decay_ptr + at, d_log_decay, mask=inside[:, None])
