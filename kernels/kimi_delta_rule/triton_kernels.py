"""The delta rule with a decay for each channel in Triton; names as in `reference.py`.

What goes from chunk to chunk runs in one program for each sequence and head, with the state on the chip. What needs
only one chunk runs in a program for each chunk.

Products between positions. `exp(b_i)` and `exp(-b_j)` by themselves may underflow and overflow. At each level, a chunk
consists of blocks of two halves, and with m the last position of an upper half, `exp(b_i - b_m)` for the lower half and
`exp(b_m - b_j)` for the upper one are at most 1. One factor for each element of a key, at a level, is either the one or
the other, and each pair of positions is in the two halves of a block at one level.

The solution. With `X = V - (exp(b) K) S`, the errors `E = X - A U` and the writes `U = beta E`, and

    N = A (I + diag(beta) A)^{-1},   E = X - N (beta X),   d_U = G - N^T (beta G),   d_X = beta d_U

where G is the gradient of U through the output and the state. N is made of ever larger blocks on the diagonal; nothing
grows if keys repeat, and nothing is divided by beta.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_chunked import (
    chunk_rows,
    load_rows,
    matrix,
    split_dot,
    store_rows,
    store_state,
    sum_from,
)
from mixerlab.kernels.common.triton_elementwise import LOG2_E


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
def factors(pointer, b, n, pid, columns, T, level, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr):
    """The factors of a level, `[C, columns]`."""
    i = tl.arange(0, C)
    middle = load_decays(pointer, n, pid, (i >> (level + 1) << (level + 1)) + (1 << level) - 1, columns, T, H, D, C)
    return tl.exp2(tl.where(((i >> level) & 1 == 1)[:, None], b - middle, middle - b))


@triton.jit
def levels_of_pairs(C: tl.constexpr, LEVELS: tl.constexpr):
    """The level at which i is in the lower and j in the upper half of a block, `[C, C]`; -1 unless i > j."""
    i = tl.arange(0, C)
    differing = i[:, None] ^ i[None, :]
    level = tl.zeros([C, C], dtype=tl.int32)
    for bit in tl.static_range(1, LEVELS):
        level += (differing >> bit > 0).to(tl.int32)
    return tl.where(i[:, None] > i[None, :], level, -1)


@triton.jit(do_not_specialize=["T"])
def cumulative_kernel(
    log_decay_ptr, cumulative_ptr, T, H: tl.constexpr, D: tl.constexpr, C: tl.constexpr
):  # fmt: skip
    """One program per chunk, sequence and head: b, to base 2, because exp2 takes fewer instructions than exp."""
    inside, offsets = chunk_rows(tl.program_id(0), tl.program_id(1), T, H, C)
    log_decay = LOG2_E * load_rows(log_decay_ptr, offsets, inside, D)
    store_rows(cumulative_ptr, offsets, inside, tl.cumsum(log_decay, 0), D)


@triton.jit(do_not_specialize=["T"])
def chunk_kernel(
    q_ptr, k_ptr, cumulative_ptr, beta_ptr, solvers_ptr, scores_ptr,
    T,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per chunk, sequence and head: N and P."""
    n, pid = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, C)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    q = load_rows(q_ptr, offsets, inside, D)
    k = load_rows(k_ptr, offsets, inside, D)
    beta = tl.load(beta_ptr + offsets, mask=inside, other=0.0)[:, None]
    b = load_decays(cumulative_ptr, n, pid, i, tl.arange(0, D), T, H, D, C)
    scores = tl.where(i[:, None] == i[None, :], tl.sum(q.to(tl.float32) * k, 1)[:, None], 0.0)
    of_pairs = levels_of_pairs(C, LEVELS)
    solver = tl.zeros([C, C], dtype=tl.float32)
    for level in range(LEVELS):
        factor = factors(cumulative_ptr, b, n, pid, tl.arange(0, D), T, level, H, D, C)
        pairs, k_there = of_pairs == level, (factor * k).to(dtype)
        products = tl.dot((factor * q).to(dtype), tl.trans(k_there), input_precision=PRECISION)
        scores = tl.where(pairs, products, scores)
        products = tl.dot(k_there, tl.trans(k_there), input_precision=PRECISION)
        corner = tl.where(pairs, products, 0.0)
        corner -= tl.dot(solver, beta * corner, input_precision=PRECISION)
        corner -= tl.dot(corner, beta * solver, input_precision=PRECISION)
        solver += corner
    tl.store(matrix(scores_ptr, index, C, C), scores)
    tl.store(matrix(solvers_ptr, index, C, C), solver)


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, cumulative_ptr, beta_ptr, solvers_ptr, scores_ptr, out_ptr, states_ptr, writes_ptr, errors_ptr,
    scale, T,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
        error -= split_dot(tl.load(matrix(solvers_ptr, index, C, C)), beta * error, PRECISION)
        store_rows(errors_ptr, offsets, inside, error, D)
        u = (beta * error).to(dtype)
        store_rows(writes_ptr, offsets, inside, u, D)
        k_end = (tl.exp2(total[None, :] - b) * k).to(dtype)
        state = tl.exp2(total)[:, None] * state + tl.dot(tl.trans(k_end), u, input_precision=PRECISION)

        q = load_rows(q_ptr, offsets, inside, D)
        out = tl.dot((from_start * q).to(dtype), held, input_precision=PRECISION)
        out += tl.dot(tl.load(matrix(scores_ptr, index, C, C)), u, input_precision=PRECISION)
        store_rows(out_ptr, offsets, inside, scale * out, D)


@triton.jit(do_not_specialize=["T"])
def backward_state_kernel(
    d_out_ptr, q_ptr, k_ptr, cumulative_ptr, beta_ptr, errors_ptr, solvers_ptr, scores_ptr, dv_ptr, d_beta_ptr,
    d_states_ptr,
    scale, T,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
        d_u += tl.dot(tl.trans(tl.load(matrix(scores_ptr, index, C, C))), d_out, input_precision=PRECISION)
        d_u -= split_dot(tl.trans(tl.load(matrix(solvers_ptr, index, C, C))), beta[:, None] * d_u, PRECISION)
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


@triton.jit(do_not_specialize=["T"])
def backward_chunk_kernel(
    d_out_ptr, q_ptr, k_ptr, cumulative_ptr, states_ptr, writes_ptr, dv_ptr, d_states_ptr, dq_ptr, dk_ptr,
    d_log_decay_ptr,
    scale, T,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, W: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per chunk, sequence, head and W channels: dq, dk and the gradient of the log decay.

    q, and a key that reads (rows of A, and S), occur as their product with `exp(b)`; a key that is written (columns of
    P and A, and the end state) as one with `exp(-b)`. So their products with their gradients are that of b.
    """
    n, pid, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    i, columns, values = tl.arange(0, C), tl.program_id(2) * W + tl.arange(0, W), tl.arange(0, D)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * chunks + n
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    b = load_decays(cumulative_ptr, n, pid, i, columns, T, H, D, C)
    total = load_total(cumulative_ptr, n, pid, columns, T, H, D, C)
    u = load_rows(writes_ptr, offsets, inside, D)
    d_v = load_rows(dv_ptr, offsets, inside, D)
    d_out = (scale * load_rows(d_out_ptr, offsets, inside, D)).to(dtype)
    in_states = index * D * D + columns[:, None] * D + values[None, :]
    state = tl.load(states_ptr + in_states, mask=n + 0 * in_states > 0, other=0.0)
    d_state = tl.load(d_states_ptr + in_states, mask=chunks - 1 - n + 0 * in_states > 0, other=0.0)
    d_scores = tl.dot(d_out, tl.trans(u), input_precision=PRECISION)
    d_between = (-tl.dot(d_v, tl.trans(u), input_precision=PRECISION)).to(dtype)

    at = offsets[:, None] * D + columns[None, :]
    q = tl.load(q_ptr + at, mask=inside[:, None], other=0.0)
    k = tl.load(k_ptr + at, mask=inside[:, None], other=0.0)
    d_q = tl.exp2(b) * tl.dot(d_out, tl.trans(state), input_precision=PRECISION)
    d_read = -tl.exp2(b) * tl.dot(d_v, tl.trans(state), input_precision=PRECISION)
    d_write = tl.exp2(total[None, :] - b) * tl.dot(u, tl.trans(d_state), input_precision=PRECISION)
    d_total = tl.sum(k * d_write, 0) + tl.exp2(total) * tl.sum(state.to(tl.float32) * d_state, 1)
    diagonal = tl.sum(tl.where(i[:, None] == i[None, :], d_scores, 0.0), 1)[:, None]
    d_q += diagonal * k
    d_write += diagonal * q
    d_scores, of_pairs = d_scores.to(dtype), levels_of_pairs(C, LEVELS)
    for level in range(LEVELS):
        factor = factors(cumulative_ptr, b, n, pid, columns, T, level, H, D, C)
        pairs = of_pairs == level
        q_there, k_there = (factor * q).to(dtype), (factor * k).to(dtype)
        of_scores, of_between = tl.where(pairs, d_scores, 0.0).to(dtype), tl.where(pairs, d_between, 0.0).to(dtype)
        d_q += factor * tl.dot(of_scores, k_there, input_precision=PRECISION)
        d_read += factor * tl.dot(of_between, k_there, input_precision=PRECISION)
        through = tl.dot(tl.trans(of_scores), q_there, input_precision=PRECISION)
        through += tl.dot(tl.trans(of_between), k_there, input_precision=PRECISION)
        d_write += factor * through
    tl.store(dq_ptr + at, d_q, mask=inside[:, None])
    tl.store(dk_ptr + at, d_read + d_write, mask=inside[:, None])
    d_b = q * d_q + k * (d_read - d_write)
    d_log_decay = sum_from(d_b) + d_total[None, :]
    tl.store(d_log_decay_ptr + at, d_log_decay, mask=inside[:, None])
