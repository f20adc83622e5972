"""The delta rule with a decay for each channel in Triton; names as in `reference.py`.

What goes from chunk to chunk runs in one program for each sequence and head, with the state on the chip. What needs
only one chunk runs in a program for each chunk.

Products between positions. `exp(b_i)` and `exp(-b_j)` by themselves may underflow and overflow. At each level, a chunk
consists of blocks of two halves, and with m the last position of an upper half, `exp(b_i - b_m)` for the lower half and
`exp(b_m - b_j)` for the upper one are at most 1. One factor for each element of a key, at a level, is either the one or
the other, and each pair of positions is in the two halves of a block at one level. Blocks of at most 16 are taken as
tiles on the diagonal: their pairs are a fourth of a chunk's of 64, and so are the products of their levels.

The solution. With `X = V - (exp(b) K) S`, the errors `E = X - A U` and the writes `U = beta E`, and

    N = A (I + diag(beta) A)^{-1},   E = X - N (beta X),   d_U = G - N^T (beta G),   d_X = beta d_U

where G is the gradient of U through the output and the state. N is made of ever larger blocks on the diagonal; nothing
grows if keys repeat, and nothing is divided by beta.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_chunked import (
    chunk_rows,
    halves,
    join_blocks,
    load_rows,
    split_dot,
    square,
    store_rows,
    store_state,
)
from mixerlab.kernels.common.triton_elementwise import LOG2_E


@triton.jit
def decay_places(n, pid, rows, T, H: tl.constexpr, C: tl.constexpr):
    """Which rows of `[B T H, D]` have `b` of these of chunk n; behind the end of the sequence its last position."""
    return ((pid // H).to(tl.int64) * T + tl.minimum(n * C + rows, T - 1)) * H + pid % H


@triton.jit
def load_decays(pointer, n, pid, rows, columns, T, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """`b` of these rows and columns of chunk n."""
    return tl.load(pointer + decay_places(n, pid, rows, T, H, C)[:, None] * D + columns[None, :])


@triton.jit
def load_total(pointer, n, pid, columns, T, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """These columns of `b` at the end of chunk n."""
    return tl.load(pointer + decay_places(n, pid, C - 1, T, H, C) * D + columns)


@triton.jit
def load_tiles(pointer, places, columns, inside, D: tl.constexpr, N: tl.constexpr):
    """Rows and columns of a `[..., D]` tensor as N tiles `[N, 16, columns]`; zeros for rows that do not exist."""
    at = tl.reshape(places, [N, 16, 1]) * D + columns[None, None, :]
    return tl.load(pointer + at, mask=tl.reshape(inside, [N, 16, 1]), other=0.0)


@triton.jit
def before_lower_half(i, level):
    """The last position of the upper half of the block of i."""
    return (i >> (level + 1) << (level + 1)) + (1 << level) - 1


@triton.jit
def factors(pointer, b, n, pid, columns, T, level, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """The factors of a level, `[C, columns]`."""
    i = tl.arange(0, C)
    middle = load_decays(pointer, n, pid, before_lower_half(i, level), columns, T, H, D, C)
    return tl.exp2(tl.where(((i >> level) & 1 == 1)[:, None], b - middle, middle - b))


@triton.jit
def factors_of_tiles(
    pointer, b, n, pid, columns, T, level, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, N: tl.constexpr
):
    """The factors of a level below 4, `[N, 16, columns]`."""
    i = tl.arange(0, C)
    places = decay_places(n, pid, before_lower_half(i, level), T, H, C)
    middle = load_tiles(pointer, places, columns, i >= 0, D, N)
    lower = ((tl.arange(0, 16) >> level) & 1 == 1)[None, :, None]
    return tl.exp2(tl.where(lower, b - middle, middle - b))


@triton.jit
def pairs_of_level(level, C: tl.constexpr):
    """Whether i is in the lower and j in the upper half of a block, `[C, C]`."""
    i = tl.arange(0, C)
    block, lower = i >> (level + 1), (i >> level) & 1 == 1
    return tl.where(lower, block, -1)[:, None] == tl.where(lower, -2, block)[None, :]


@triton.jit(do_not_specialize=["T"])
def cumulative_kernel(
    log_decay_ptr, cumulative_ptr, T, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """One program per chunk, sequence and head: b, to base 2, because exp2 takes fewer instructions than exp."""
    inside, offsets = chunk_rows(tl.program_id(0), tl.program_id(1), T, H, C)
    log_decay = LOG2_E * load_rows(log_decay_ptr, offsets, inside, D)
    store_rows(cumulative_ptr, offsets, inside, tl.cumsum(log_decay, 0), D)


@triton.jit
def blocks(pointer, index, row, column, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    """Pointers to blocks `[N, B, B]` of matrix `index` `[C, C]`, `C / N` apart on a diagonal from this place on."""
    block, i = tl.arange(0, N)[:, None, None] * (C // N), tl.arange(0, B)
    rows, columns = row + block + i[None, :, None], column + block + i[None, None, :]
    return pointer + index * C * C + rows * C + columns


@triton.jit
def within_tiles(
    q_ptr, k_ptr, cumulative_ptr, n, pid, columns, T, inside, offsets,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What these columns add to P and A in the tiles on the diagonal, `[C / 16, 16, 16]` each."""
    N: tl.constexpr = C // 16
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    i, row = tl.arange(0, C), tl.arange(0, 16)
    q = load_tiles(q_ptr, offsets, columns, inside, D, N)
    k = load_tiles(k_ptr, offsets, columns, inside, D, N)
    b = load_tiles(cumulative_ptr, decay_places(n, pid, i, T, H, C), columns, i >= 0, D, N)
    scores = tl.where(row[None, :, None] == row[None, None, :], tl.sum(q.to(tl.float32) * k, 2)[:, :, None], 0.0)
    between = tl.zeros([N, 16, 16], dtype=tl.float32)
    for level in tl.static_range(4):
        factor = factors_of_tiles(cumulative_ptr, b, n, pid, columns, T, level, H, D, C, N)
        pairs, k_there = pairs_of_level(level, 16)[None], (factor * k).to(dtype)
        across = tl.permute(k_there, (0, 2, 1))
        products = tl.dot((factor * q).to(dtype), across, input_precision=PRECISION)
        scores += tl.where(pairs, products, 0.0)
        between += tl.where(pairs, tl.dot(k_there, across, input_precision=PRECISION), 0.0)
    return scores, between


@triton.jit(do_not_specialize=["T"])
def scores_kernel(
    q_ptr,
    k_ptr,
    cumulative_ptr,
    between_ptr,
    scores_ptr,
    T,
    H: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    W: tl.constexpr,
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per chunk, sequence and head: A and P."""
    n, pid = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, C)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    N: tl.constexpr = C // 16
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    scores = tl.zeros([C, C], dtype=tl.float32)
    between = tl.zeros([C, C], dtype=tl.float32)
    own_scores = tl.zeros([N, 16, 16], dtype=tl.float32)
    own_between = tl.zeros([N, 16, 16], dtype=tl.float32)
    for part in range(D // W):
        columns = part * W + tl.arange(0, W)
        more_scores, more_between = within_tiles(
            q_ptr, k_ptr, cumulative_ptr, n, pid, columns, T, inside, offsets, H, D, C, PRECISION
        )
        own_scores += more_scores
        own_between += more_between
        at = offsets[:, None] * D + columns[None, :]
        q = tl.load(q_ptr + at, mask=inside[:, None], other=0.0)
        k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
        b = load_decays(cumulative_ptr, n, pid, i, columns, T, H, D, C)
        for level in range(4, LEVELS):
            factor = factors(cumulative_ptr, b, n, pid, columns, T, level, H, D, C)
            pairs, k_there = pairs_of_level(level, C), (factor * k).to(dtype)
            products = tl.dot((factor * q).to(dtype), tl.trans(k_there), input_precision=PRECISION)
            scores += tl.where(pairs, products, 0.0)
            between += tl.where(pairs, tl.dot(k_there, tl.trans(k_there), input_precision=PRECISION), 0.0)
    of_others = (i >> 4)[:, None] != (i >> 4)[None, :]
    tl.store(square(scores_ptr, index, C), scores.to(scores_ptr.dtype.element_ty), mask=of_others)
    tl.store(square(between_ptr, index, C), between, mask=of_others)
    tl.store(blocks(scores_ptr, index, 0, 0, N, 16, C), own_scores.to(scores_ptr.dtype.element_ty))
    tl.store(blocks(between_ptr, index, 0, 0, N, 16, C), own_between)


@triton.jit
def double_blocks(
    solver, between_ptr, beta, index, N: tl.constexpr, B: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr
):
    """N of diagonal blocks `[2 N, B, B]`, joined in pairs `[N, 2 B, 2 B]`; beta `[C]`."""
    above, below = halves(solver, N, B, B)
    beta_above, beta_below = halves(beta[:, None], N, B, 1)
    corner = tl.load(blocks(between_ptr, index, B, 0, N, B, C))
    corner -= tl.dot(below, beta_below * corner, input_precision=PRECISION)
    corner -= tl.dot(corner, beta_above * above, input_precision=PRECISION)
    return join_blocks(solver, corner, N, B)


@triton.jit(do_not_specialize=["T"])
def solver_kernel(
    between_ptr, beta_ptr, solvers_ptr, T, H: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """One program per chunk, sequence and head: N."""
    n, pid = tl.program_id(0), tl.program_id(1)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    beta = tl.load(beta_ptr + offsets, mask=inside, other=0.0)
    between = tl.load(blocks(between_ptr, index, 0, 0, C // 16, 16, C))
    i, own = tl.arange(0, 16), tl.reshape(beta, [C // 16, 16, 1])
    row, column = i[None, :, None], i[None, None, :]
    solver = tl.where(row >> 1 == column >> 1, between, 0.0)
    for level in tl.static_range(1, 4):
        beside = (row >> level != column >> level) & (row >> (level + 1) == column >> (level + 1))
        corner = tl.where(beside, between, 0.0)
        corner -= tl.dot(solver, own * corner, input_precision=PRECISION)
        corner -= tl.dot(corner, own * solver, input_precision=PRECISION)
        solver += corner
    if C >= 32:
        solver = double_blocks(solver, between_ptr, beta, index, C // 32, 16, C, PRECISION)
    if C >= 64:
        solver = double_blocks(solver, between_ptr, beta, index, C // 64, 32, C, PRECISION)
    tl.store(square(solvers_ptr, index, C), tl.reshape(solver, [C, C]).to(solvers_ptr.dtype.element_ty))


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
        store_state(states_ptr, index, n, held)

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
        store_state(d_states_ptr, index, back, held)

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
def backward_within_tiles(
    d_out_ptr, q_ptr, k_ptr, cumulative_ptr, writes_ptr, dv_ptr, n, pid, columns, scale, T, inside, offsets,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What pairs in the tiles on the diagonal add to the gradients of q and of keys that read and write."""
    N: tl.constexpr = C // 16
    W: tl.constexpr = columns.shape[0]
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    i, row, values = tl.arange(0, C), tl.arange(0, 16), tl.arange(0, D)
    u = tl.permute(load_tiles(writes_ptr, offsets, values, inside, D, N), (0, 2, 1))
    d_out = (scale * load_tiles(d_out_ptr, offsets, values, inside, D, N)).to(dtype)
    d_scores = tl.dot(d_out, u, input_precision=PRECISION)
    d_between = -tl.dot(load_tiles(dv_ptr, offsets, values, inside, D, N), u, input_precision=PRECISION)
    q = load_tiles(q_ptr, offsets, columns, inside, D, N)
    k = load_tiles(k_ptr, offsets, columns, inside, D, N)
    b = load_tiles(cumulative_ptr, decay_places(n, pid, i, T, H, C), columns, i >= 0, D, N)
    diagonal = row[None, :, None] == row[None, None, :]
    on_diagonal = tl.sum(tl.where(diagonal, d_scores, 0.0), 2)[:, :, None]
    d_q, d_read, d_write = on_diagonal * k, tl.zeros([N, 16, W], dtype=tl.float32), on_diagonal * q
    for level in tl.static_range(4):
        factor = factors_of_tiles(cumulative_ptr, b, n, pid, columns, T, level, H, D, C, N)
        q_there, k_there = (factor * q).to(dtype), (factor * k).to(dtype)
        pairs = pairs_of_level(level, 16)[None]
        of_scores, of_between = tl.where(pairs, d_scores, 0.0).to(dtype), tl.where(pairs, d_between, 0.0).to(dtype)
        d_q += factor * tl.dot(of_scores, k_there, input_precision=PRECISION)
        d_read += factor * tl.dot(of_between, k_there, input_precision=PRECISION)
        through = tl.dot(tl.permute(of_scores, (0, 2, 1)), q_there, input_precision=PRECISION)
        through += tl.dot(tl.permute(of_between, (0, 2, 1)), k_there, input_precision=PRECISION)
        d_write += factor * through
    return tl.reshape(d_q, [C, W]), tl.reshape(d_read, [C, W]), tl.reshape(d_write, [C, W])


@triton.jit(do_not_specialize=["T"])
def backward_chunk_kernel(
    d_out_ptr,
    q_ptr,
    k_ptr,
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
    d_q, d_read, d_write = backward_within_tiles(
        d_out_ptr, q_ptr, k_ptr, cumulative_ptr, writes_ptr, dv_ptr,
        n, pid, columns, scale, T, inside, offsets, H, D, C, PRECISION,
    )  # fmt: skip
    b = load_decays(cumulative_ptr, n, pid, i, columns, T, H, D, C)
    total = load_total(cumulative_ptr, n, pid, columns, T, H, D, C)
    at = offsets[:, None] * D + columns[None, :]
    in_states = index * D * D + columns[:, None] * D + values[None, :]
    state = tl.load(states_ptr + in_states, mask=n + 0 * in_states > 0, other=0.0)
    d_state = tl.load(d_states_ptr + in_states, mask=chunks - 1 - n + 0 * in_states > 0, other=0.0)
    u = load_rows(writes_ptr, offsets, inside, D)
    from_end = tl.exp2(total[None, :] - b) * tl.dot(u, tl.trans(d_state), input_precision=PRECISION)
    k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
    d_total = tl.sum(k * from_end, 0) + tl.exp2(total) * tl.sum(state.to(tl.float32) * d_state, 1)
    d_write += from_end
    d_out = (scale * load_rows(d_out_ptr, offsets, inside, D)).to(dtype)
    d_q += tl.exp2(b) * tl.dot(d_out, tl.trans(state), input_precision=PRECISION)
    d_scores = tl.dot(d_out, tl.trans(u), input_precision=PRECISION)
    d_v = load_rows(dv_ptr, offsets, inside, D)
    d_read -= tl.exp2(b) * tl.dot(d_v, tl.trans(state), input_precision=PRECISION)
    d_between = (-tl.dot(d_v, tl.trans(u), input_precision=PRECISION)).to(dtype)
    q = tl.load(q_ptr + at, mask=inside[:, None], other=0.0)
    d_scores = d_scores.to(dtype)
    for level in range(4, LEVELS):
        factor = factors(cumulative_ptr, b, n, pid, columns, T, level, H, D, C)
        pairs = pairs_of_level(level, C)
        q_there, k_there = (factor * q).to(dtype), (factor * k).to(dtype)
        of_scores, of_between = tl.where(pairs, d_scores, 0.0).to(dtype), tl.where(pairs, d_between, 0.0).to(dtype)
        d_q += factor * tl.dot(of_scores, k_there, input_precision=PRECISION)
        d_read += factor * tl.dot(of_between, k_there, input_precision=PRECISION)
        through = tl.dot(tl.trans(of_scores), q_there, input_precision=PRECISION)
        through += tl.dot(tl.trans(of_between), k_there, input_precision=PRECISION)
        d_write += factor * through
    tl.store(dq_ptr + at, d_q.to(dtype), mask=inside[:, None])
    tl.store(dk_ptr + at, (d_read + d_write).to(dtype), mask=inside[:, None])
    d_b = q * d_q + k * (d_read - d_write)
    d_log_decay = tl.sum(d_b, 0)[None, :] - tl.cumsum(d_b, 0) + d_b + d_total[None, :]
    tl.store(d_log_decay_ptr + at, d_log_decay, mask=inside[:, None])
