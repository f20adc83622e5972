"""The gated delta rule in Triton; names as in `reference.py`.

What must go from chunk to chunk runs in one program per sequence and head with the state on chip; what needs
one chunk alone runs in a program per chunk. Forward: the inverses of the triangular systems, then a walk over
the chunks, which saves the state before each and per position the write `u_i` and the error `v_i - read_i`.
(They differ by the factor `beta_i`, but where keys repeat the writes cancel in their sum, the state, and only
the rounded ones that made the output do so again.) Backward: a walk from the last chunk to the first, which
yields the gradients of v and beta and saves that of the state, then each chunk's of q, k and the decay.
"""

import triton
import triton.language as tl

from kernels.chunked_triton import (
    decay_between,
    load_gates,
    load_rows,
    load_state,
    product,
    square,
    store_rows,
    store_state,
    sum_from,
)


@triton.jit
def unit_lower_inverse(lower, C: tl.constexpr, PRECISION: tl.constexpr):
    """`(I + lower)^{-1}` for a strictly lower triangular `[C, C]`.

    Blocks of twice the size from their two halves: `[[P, 0], [X, Q]]` has the inverse
    `[[P^-1, 0], [-Q^-1 X P^-1, Q^-1]]`. Every intermediate is the inverse of a diagonal block, so nothing
    grows where keys repeat; the powers of a Neumann series would.
    """
    i = tl.arange(0, C)
    row, column = i[:, None], i[None, :]
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where(row // 2 == column // 2, lower, 0.0)
    for level in tl.static_range(1, 6):
        if 2**level < C:
            beside = (row >> level != column >> level) & (row >> (level + 1) == column >> (level + 1))
            corner = tl.dot(tl.where(beside, lower, 0.0), inverse, input_precision=PRECISION)
            inverse -= tl.dot(inverse, corner, input_precision=PRECISION)
    return inverse


@triton.jit(do_not_specialize=["T"])
def inverse_kernel(
    k_ptr,
    log_decay_ptr,
    beta_ptr,
    inverses_ptr,
    T,
    H: tl.constexpr,
    D: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per chunk, sequence and head: the inverse of the chunk's triangular system."""
    n, pid = tl.program_id(0), tl.program_id(1)
    batch, head = (pid // H).to(tl.int64), pid % H
    i = tl.arange(0, C)
    t = n * C + i
    inside = t < T
    offsets = (batch * T + t) * H + head
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    cumulative, _total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
    k = load_rows(k_ptr, offsets, inside, D)
    system = tl.dot(k, tl.trans(k), input_precision=PRECISION) * decay_between(cumulative, C)
    system = tl.where(i[:, None] > i[None, :], beta[:, None] * system, 0.0)
    inverse = unit_lower_inverse(system, C, PRECISION)
    tl.store(square(inverses_ptr, index, C), inverse.to(inverses_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    log_decay_ptr,
    beta_ptr,
    inverses_ptr,
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
    batch, head = (pid // H).to(tl.int64), pid % H
    chunks = tl.cdiv(T, C)
    i = tl.arange(0, C)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    state = tl.zeros([D, D], dtype=tl.float32)
    for n in range(chunks):
        t = n * C + i
        inside = t < T
        offsets = (batch * T + t) * H + head
        index = pid.to(tl.int64) * chunks + n
        cumulative, total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
        decay = decay_between(cumulative, C)
        from_start, to_end = tl.exp(cumulative)[:, None], tl.exp(total - cumulative)[:, None]
        k = load_rows(k_ptr, offsets, inside, D)
        v = load_rows(v_ptr, offsets, inside, D)
        inverse = tl.load(square(inverses_ptr, index, C))
        held = state.to(dtype)
        store_state(states_ptr, index, n, held, D)

        error = v - from_start * tl.dot(k, held, input_precision=PRECISION)
        u = tl.dot(inverse, (beta[:, None] * error).to(dtype), input_precision=PRECISION).to(dtype)
        store_rows(writes_ptr, offsets, inside, u, D)
        k_end = (to_end * k).to(dtype)
        state = tl.exp(total) * state + tl.dot(tl.trans(k_end), u, input_precision=PRECISION)

        between = tl.dot(k, tl.trans(k), input_precision=PRECISION) * decay
        between = tl.where(i[:, None] > i[None, :], between, 0.0)
        error -= product(between, u, PRECISION)
        store_rows(errors_ptr, offsets, inside, error, D)

        q = load_rows(q_ptr, offsets, inside, D)
        attention = (tl.dot(q, tl.trans(k), input_precision=PRECISION) * decay).to(dtype)
        out = from_start * tl.dot(q, held, input_precision=PRECISION)
        out += tl.dot(attention, u, input_precision=PRECISION)
        store_rows(out_ptr, offsets, inside, scale * out, D)


@triton.jit(do_not_specialize=["T"])
def backward_state_kernel(
    d_out_ptr,
    q_ptr,
    k_ptr,
    log_decay_ptr,
    beta_ptr,
    errors_ptr,
    inverses_ptr,
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
    """One program per sequence and head: dv, d beta, and the gradient of the state behind each chunk."""
    pid = tl.program_id(0)
    batch, head = (pid // H).to(tl.int64), pid % H
    chunks = tl.cdiv(T, C)
    i = tl.arange(0, C)
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    d_state = tl.zeros([D, D], dtype=tl.float32)
    for back in range(chunks):
        n = chunks - 1 - back
        t = n * C + i
        inside = t < T
        offsets = (batch * T + t) * H + head
        index = pid.to(tl.int64) * chunks + n
        cumulative, total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
        from_start, to_end = tl.exp(cumulative)[:, None], tl.exp(total - cumulative)[:, None]
        q = load_rows(q_ptr, offsets, inside, D)
        k = load_rows(k_ptr, offsets, inside, D)
        d_out = (scale * load_rows(d_out_ptr, offsets, inside, D)).to(dtype)
        held = d_state.to(dtype)
        store_state(d_states_ptr, index, back, held, D)

        # Through o = exp(b) q S + P U and the end state to U, through the triangular system to v.
        attention = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        attention = (attention * tl.trans(decay_between(cumulative, C))).to(dtype)
        d_u = to_end * tl.dot(k, held, input_precision=PRECISION)
        d_u += tl.dot(attention, d_out, input_precision=PRECISION)
        inverse = tl.load(square(inverses_ptr, index, C))
        d_solved = product(tl.trans(inverse), d_u, PRECISION)
        error = load_rows(errors_ptr, offsets, inside, D)
        tl.store(d_beta_ptr + offsets, tl.sum(error * d_solved, 1), mask=inside)
        d_v = (beta[:, None] * d_solved).to(dtype)
        store_rows(dv_ptr, offsets, inside, d_v, D)

        q_start, k_start = (from_start * q).to(dtype), (from_start * k).to(dtype)
        d_state = tl.exp(total) * d_state + tl.dot(tl.trans(q_start), d_out, input_precision=PRECISION)
        d_state -= tl.dot(tl.trans(k_start), d_v, input_precision=PRECISION)


@triton.jit(do_not_specialize=["T"])
def backward_chunk_kernel(
    d_out_ptr,
    q_ptr,
    k_ptr,
    log_decay_ptr,
    beta_ptr,
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
    PRECISION: tl.constexpr,
):
    """One program per chunk, sequence and head: dq, dk and the gradient of the log decay."""
    n, pid = tl.program_id(0), tl.program_id(1)
    batch, head = (pid // H).to(tl.int64), pid % H
    i = tl.arange(0, C)
    t = n * C + i
    inside = t < T
    offsets = (batch * T + t) * H + head
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    dtype: tl.constexpr = q_ptr.dtype.element_ty
    cumulative, total, _beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
    from_start, to_end = tl.exp(cumulative)[:, None], tl.exp(total - cumulative)[:, None]
    decay = decay_between(cumulative, C)
    state = load_state(states_ptr, index, n, D)
    d_state = load_state(d_states_ptr, index, tl.num_programs(0) - 1 - n, D)
    k = load_rows(k_ptr, offsets, inside, D)
    u = load_rows(writes_ptr, offsets, inside, D)

    # A key acts by writing (columns of P and A, and the end state) and by reading (rows of A, and S).
    d_write = to_end * tl.dot(u, tl.trans(d_state), input_precision=PRECISION)
    at_end = tl.sum(k * d_write, 1)
    d_total = tl.sum(at_end, 0) + tl.exp(total) * tl.sum(tl.sum(state.to(tl.float32) * d_state, 1), 0)

    q = load_rows(q_ptr, offsets, inside, D)
    d_out = (scale * load_rows(d_out_ptr, offsets, inside, D)).to(dtype)
    d_attention = tl.dot(d_out, tl.trans(u), input_precision=PRECISION) * decay
    gain = d_attention * tl.dot(q, tl.trans(k), input_precision=PRECISION)
    d_attention = d_attention.to(dtype)
    d_q = from_start * tl.dot(d_out, tl.trans(state), input_precision=PRECISION)
    at_start = tl.sum(q * d_q, 1)
    d_q += tl.dot(d_attention, k, input_precision=PRECISION)
    store_rows(dq_ptr, offsets, inside, d_q, D)
    d_write += tl.dot(tl.trans(d_attention), q, input_precision=PRECISION)

    d_v = load_rows(dv_ptr, offsets, inside, D)
    d_between = tl.dot(d_v, tl.trans(u), input_precision=PRECISION) * decay
    d_between = tl.where(i[:, None] > i[None, :], -d_between, 0.0)
    gain += d_between * tl.dot(k, tl.trans(k), input_precision=PRECISION)
    d_between = d_between.to(dtype)
    d_read = -from_start * tl.dot(d_v, tl.trans(state), input_precision=PRECISION)
    at_start += tl.sum(k * d_read, 1)
    d_read += tl.dot(d_between, k, input_precision=PRECISION)
    d_write += tl.dot(tl.trans(d_between), k, input_precision=PRECISION)
    store_rows(dk_ptr, offsets, inside, d_read + d_write, D)

    # exp(b_i) multiplies row i of P and A and what it reads from S, exp(-b_j) column j and its share of the end
    # state, exp(b_C) that state. Both sums run over the same numbers, so that what cancels does so exactly.
    d_cumulative = tl.sum(gain, 1) - tl.sum(gain, 0) + at_start - at_end
    tl.store(d_log_decay_ptr + offsets, sum_from(d_cumulative) + d_total, mask=inside)
