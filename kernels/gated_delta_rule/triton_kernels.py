"""The gated delta rule in Triton; names as in `reference.py`.

What goes from chunk to chunk runs in one program for each sequence and part of its values, with the state on the chip.
What needs only one chunk runs in a program for each chunk. E parts of W columns, of one value head or of several, share
a key head: its keys, queries and gates are read where they are, and the program that writes their gradients sums over
the parts.

Forward: the inverses of the triangular systems; then a loop over the chunks, which saves the state before each chunk,
and for each position the write `u_i` and the error `v_i - read_i`. These differ only by the factor `beta_i`, but both
are saved: if keys repeat, the writes cancel in their sum, which is the state, and in the backward only the same rounded
writes cancel again.

Backward: a loop from the last chunk to the first, which computes the gradients of v and beta and saves that of the
state; then for each chunk the gradients of q, k and the decay.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_chunked import (
    chunk_rows,
    decay_between,
    load_gates,
    load_rows,
    matrix,
    split_dot,
    store_rows,
    store_state,
    sum_from,
)


@triton.jit
def system_blocks(k_row, k_column, beta_row, b_row, b_column, PRECISION: tl.constexpr):
    """`beta_i exp(b_i - b_j) k_i.k_j` for N blocks of rows i and columns j: keys `[N, B, D]`, gates `[N, B]`."""
    # The minimum matters only above the diagonal of a diagonal block, where the exponential would overflow.
    decay = tl.exp(tl.minimum(b_row[:, :, None] - b_column[:, None, :], 0.0))
    scores = tl.dot(k_row, tl.permute(k_column, (0, 2, 1)), input_precision=PRECISION)
    return scores * decay * beta_row[:, :, None]


@triton.jit
def small_inverses(k, beta, cumulative, N: tl.constexpr, B: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr):
    """The inverses `[N, B, B]` of the diagonal blocks of `I + system`, from those of blocks of 2, 4, ..., B / 2."""
    i = tl.arange(0, B)
    row, column = i[None, :, None], i[None, None, :]
    k, beta, cumulative = tl.reshape(k, [N, B, D]), tl.reshape(beta, [N, B]), tl.reshape(cumulative, [N, B])
    system = tl.where(row > column, system_blocks(k, k, beta, cumulative, cumulative, PRECISION), 0.0)
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where(row // 2 == column // 2, system, 0.0)
    for level in tl.static_range(1, 4):
        beside = (row >> level != column >> level) & (row >> (level + 1) == column >> (level + 1))
        corner = tl.dot(tl.where(beside, system, 0.0), inverse, input_precision=PRECISION)
        inverse -= tl.dot(inverse, corner, input_precision=PRECISION)
    return inverse


@triton.jit
def halves(x, N: tl.constexpr, B: tl.constexpr, W: tl.constexpr):
    """The even and the odd blocks of B rows, `[N, B, W]` each."""
    return tl.split(tl.permute(tl.reshape(x, [N, 2, B, W]), (0, 2, 3, 1)))


@triton.jit
def double_blocks(
    inverse, k, beta, cumulative, N: tl.constexpr, B: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr
):
    """The inverses `[2 N, B, B]` of diagonal blocks, joined in pairs `[N, 2 B, 2 B]`."""
    above, below = halves(inverse, N, B, B)
    k_above, k_below = halves(k, N, B, D)
    b_above, b_below = halves(cumulative[:, None], N, B, 1)
    _, beta_below = halves(beta[:, None], N, B, 1)
    b_above, b_below = tl.reshape(b_above, [N, B]), tl.reshape(b_below, [N, B])
    corner = system_blocks(k_below, k_above, tl.reshape(beta_below, [N, B]), b_below, b_above, PRECISION)
    corner = tl.dot(corner, above, input_precision=PRECISION)
    corner = -tl.dot(below, corner, input_precision=PRECISION)
    half = tl.arange(0, 2)
    row, column = half[None, :, None, None, None], half[None, None, None, :, None]
    joined = tl.where(row == column, tl.reshape(inverse, [N, 2, B, 1, B]), 0.0)
    joined += tl.where(row > column, tl.reshape(corner, [N, 1, B, 1, B]), 0.0)
    return tl.reshape(joined, [N, 2 * B, 2 * B])


@triton.jit
def unit_lower_inverse(k, beta, cumulative, C: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr):
    """The inverse `[1, C, C]` of a chunk's `I + system`, from those of ever larger diagonal blocks.

    `[[P, 0], [X, Q]]` has the inverse `[[P^-1, 0], [-Q^-1 X P^-1, Q^-1]]`. Every intermediate result is the inverse of
    a diagonal block, so nothing grows if keys repeat. The powers of a Neumann series would.
    """
    inverse = small_inverses(k, beta, cumulative, C // 16, 16, D, PRECISION)
    if C >= 32:
        inverse = double_blocks(inverse, k, beta, cumulative, C // 32, 16, D, PRECISION)
    if C >= 64:
        inverse = double_blocks(inverse, k, beta, cumulative, C // 64, 32, D, PRECISION)
    return inverse


@triton.jit(do_not_specialize=["T"])
def inverse_kernel(
    k_ptr, log_decay_ptr, beta_ptr, inverses_ptr,
    T,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per chunk, sequence and head: the inverse of the chunk's triangular system."""
    n, pid = tl.program_id(0), tl.program_id(1)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    cumulative, _total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
    k = load_rows(k_ptr, offsets, inside, D)
    inverse = tl.reshape(unit_lower_inverse(k, beta, cumulative, C, D, PRECISION), [C, C])
    tl.store(matrix(inverses_ptr, index, C, C), inverse)


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, log_decay_ptr, beta_ptr, inverses_ptr, out_ptr, states_ptr, writes_ptr, errors_ptr,
    scale, T,
    H: tl.constexpr, E: tl.constexpr, W: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per sequence and part of the values: the output, and for the backward states, writes and errors."""
    pid = tl.program_id(0)
    chunks = tl.cdiv(T, C)
    i = tl.arange(0, C)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    state = tl.zeros([D, W], dtype=tl.float32)
    for n in range(chunks):
        inside, offsets = chunk_rows(n, pid, T, H * E, C)
        _, key_offsets = chunk_rows(n, pid // E, T, H, C)
        index = pid.to(tl.int64) * chunks + n
        cumulative, total, beta = load_gates(log_decay_ptr, beta_ptr, key_offsets, inside)
        decay = decay_between(cumulative, C)
        from_start, to_end = tl.exp(cumulative)[:, None], tl.exp(total - cumulative)[:, None]
        k = load_rows(k_ptr, key_offsets, inside, D)
        v = load_rows(v_ptr, offsets, inside, W)
        inverse = tl.load(matrix(inverses_ptr, (pid // E).to(tl.int64) * chunks + n, C, C))
        held = state.to(dtype)
        store_state(states_ptr, index, n, held)

        error = v - from_start * tl.dot(k, held, input_precision=PRECISION)
        u = tl.dot(inverse, (beta[:, None] * error).to(dtype), input_precision=PRECISION).to(dtype)
        store_rows(writes_ptr, offsets, inside, u, W)
        k_end = (to_end * k).to(dtype)
        state = tl.exp(total) * state + tl.dot(tl.trans(k_end), u, input_precision=PRECISION)

        between = tl.dot(k, tl.trans(k), input_precision=PRECISION) * decay
        between = tl.where(i[:, None] > i[None, :], between, 0.0)
        error -= split_dot(between, u, PRECISION)
        store_rows(errors_ptr, offsets, inside, error, W)

        q = load_rows(q_ptr, key_offsets, inside, D)
        attention = (tl.dot(q, tl.trans(k), input_precision=PRECISION) * decay).to(dtype)
        out = from_start * tl.dot(q, held, input_precision=PRECISION)
        out += tl.dot(attention, u, input_precision=PRECISION)
        store_rows(out_ptr, offsets, inside, scale * out, W)


@triton.jit(do_not_specialize=["T"])
def backward_state_kernel(
    d_out_ptr, q_ptr, k_ptr, log_decay_ptr, beta_ptr, errors_ptr, inverses_ptr, dv_ptr, d_betas_ptr, d_states_ptr,
    scale, T,
    H: tl.constexpr, E: tl.constexpr, W: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per sequence and part of the values: dv, what d beta has from it, the later state's gradient."""
    pid = tl.program_id(0)
    chunks = tl.cdiv(T, C)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    d_state = tl.zeros([D, W], dtype=tl.float32)
    for back in range(chunks):
        n = chunks - 1 - back
        inside, offsets = chunk_rows(n, pid, T, H * E, C)
        _, key_offsets = chunk_rows(n, pid // E, T, H, C)
        index = pid.to(tl.int64) * chunks + n
        cumulative, total, beta = load_gates(log_decay_ptr, beta_ptr, key_offsets, inside)
        from_start, to_end = tl.exp(cumulative)[:, None], tl.exp(total - cumulative)[:, None]
        q = load_rows(q_ptr, key_offsets, inside, D)
        k = load_rows(k_ptr, key_offsets, inside, D)
        d_out = (scale * load_rows(d_out_ptr, offsets, inside, W)).to(dtype)
        held = d_state.to(dtype)
        store_state(d_states_ptr, index, back, held)

        # The gradient of U comes through o = exp(b) q S + P U and through the state at the end of the chunk; that of v
        # comes from it through the triangular system.
        attention = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        attention = (attention * tl.trans(decay_between(cumulative, C))).to(dtype)
        d_u = to_end * tl.dot(k, held, input_precision=PRECISION)
        d_u += tl.dot(attention, d_out, input_precision=PRECISION)
        inverse = tl.load(matrix(inverses_ptr, (pid // E).to(tl.int64) * chunks + n, C, C))
        d_solved = split_dot(tl.trans(inverse), d_u, PRECISION)
        error = load_rows(errors_ptr, offsets, inside, W)
        tl.store(d_betas_ptr + offsets, tl.sum(error * d_solved, 1), mask=inside)
        d_v = (beta[:, None] * d_solved).to(dtype)
        store_rows(dv_ptr, offsets, inside, d_v, W)

        q_start, k_start = (from_start * q).to(dtype), (from_start * k).to(dtype)
        d_state = tl.exp(total) * d_state + tl.dot(tl.trans(q_start), d_out, input_precision=PRECISION)
        d_state -= tl.dot(tl.trans(k_start), d_v, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T"])
def backward_chunk_kernel(
    d_out_ptr, q_ptr, k_ptr, log_decay_ptr, beta_ptr, states_ptr, writes_ptr, dv_ptr, d_states_ptr, d_betas_ptr, dq_ptr,
    dk_ptr, d_log_decay_ptr, d_beta_ptr,
    scale, T,
    H: tl.constexpr, E: tl.constexpr, W: tl.constexpr, V: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One program per chunk, sequence and key head: dq, dk and the gradients of log decay and beta."""
    n, pid, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    i = tl.arange(0, C)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    k = load_rows(k_ptr, offsets, inside, D)
    q = load_rows(q_ptr, offsets, inside, D)
    cumulative, total, _beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
    from_start, to_end = tl.exp(cumulative)[:, None], tl.exp(total - cumulative)[:, None]

    # A key enters as a write (columns of P and A, and the end state) and as a read (rows of A, and S).
    d_attention = tl.zeros([C, C], dtype=tl.float32)
    d_between = tl.zeros([C, C], dtype=tl.float32)
    d_q = tl.zeros([C, D], dtype=tl.float32)
    d_k = tl.zeros([C, D], dtype=tl.float32)
    at_end = tl.zeros([C], dtype=tl.float32)
    at_start = tl.zeros([C], dtype=tl.float32)
    of_state = 0.0
    # The E parts of the values lie side by side; V of their E x W columns at a time.
    for part in tl.static_range(E * W // V):
        columns = part * V + tl.arange(0, V)
        at = offsets[:, None] * (E * W) + columns[None, :]
        u = tl.load(writes_ptr + at, mask=inside[:, None], other=0.0)
        d_v = tl.load(dv_ptr + at, mask=inside[:, None], other=0.0)
        d_out = (scale * tl.load(d_out_ptr + at, mask=inside[:, None], other=0.0)).to(dtype)
        head = (pid * E + columns // W).to(tl.int64)
        in_states = (head * chunks + n) * D * W + columns % W
        in_states = in_states[None, :] + tl.arange(0, D)[:, None] * W
        state = tl.load(states_ptr + in_states, mask=(n + 0 * in_states) > 0, other=0.0)
        d_state = tl.load(d_states_ptr + in_states, mask=(chunks - 1 - n + 0 * in_states) > 0, other=0.0)
        d_attention += tl.dot(d_out, tl.trans(u), input_precision=PRECISION)
        d_between -= tl.dot(d_v, tl.trans(u), input_precision=PRECISION)
        d_q += tl.dot(d_out, tl.trans(state), input_precision=PRECISION)
        d_write = to_end * tl.dot(u, tl.trans(d_state), input_precision=PRECISION)
        at_end += tl.sum(k * d_write, 1)
        d_read = from_start * tl.dot(d_v, tl.trans(state), input_precision=PRECISION)
        at_start += tl.sum(k * d_read, 1)
        d_k += d_write - d_read
        of_state += tl.sum(tl.sum(state.to(tl.float32) * d_state, 1), 0)

    decay = decay_between(cumulative, C)
    d_attention *= decay
    gain = d_attention * tl.dot(q, tl.trans(k), input_precision=PRECISION)
    d_attention = d_attention.to(dtype)
    d_between = tl.where(i[:, None] > i[None, :], d_between * decay, 0.0)
    gain += d_between * tl.dot(k, tl.trans(k), input_precision=PRECISION)
    d_between = d_between.to(dtype)
    # exp(b_i) multiplies row i of P and A and what it reads from S; exp(-b_j) multiplies column j and its part of the
    # end state; exp(b_C) multiplies that state. Both sums are over the same elements: what cancels does so exactly.
    d_cumulative = tl.sum(gain, 1) - tl.sum(gain, 0)

    d_q = from_start * d_q
    d_cumulative += tl.sum(q * d_q, 1)
    d_q += tl.dot(d_attention, k, input_precision=PRECISION)
    store_rows(dq_ptr, offsets, inside, d_q, D)

    d_total = tl.sum(at_end, 0) + tl.exp(total) * of_state
    d_cumulative -= at_end + at_start
    d_k += tl.dot(d_between, k, input_precision=PRECISION)
    d_k += tl.dot(tl.trans(d_between), k, input_precision=PRECISION)
    d_k += tl.dot(tl.trans(d_attention), q, input_precision=PRECISION)
    store_rows(dk_ptr, offsets, inside, d_k, D)
    tl.store(d_log_decay_ptr + offsets, sum_from(d_cumulative) + d_total, mask=inside)
    d_beta = tl.zeros([C], dtype=tl.float32)
    for e in tl.static_range(E):
        d_beta += tl.load(d_betas_ptr + offsets * E + e, mask=inside, other=0.0)
    tl.store(d_beta_ptr + offsets, d_beta, mask=inside)
