"""The mesa layer in Triton; names as in `reference.py`.

What goes from chunk to chunk (the states, and in the backward their gradients) runs in one program for each sequence
and head. The solves and all other gradients run in a program for each chunk.

Precision, for 16-bit inputs: if keys repeat, `H` is hundreds of times larger than the ridge in some directions. The
solution `x` is small along these and large across them, and if `x` or `H` were rounded to 16 bits, `x H` would be
mostly error. So states and solutions stay in float32, and products with them keep 16 bits of mantissa (`split_dot`). In
the solver a direction is rounded to 16 bits before it is first used, so that its casts are exact, and `H` is split into
two 16-bit parts. The scores of a chunk may be rounded, because that only changes the weight of a key.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_chunked import (
    chunk_rows,
    decay_between,
    load_gates,
    load_packed_rows,
    load_rows,
    load_state,
    split_dot,
    store_rows,
    store_state,
    sum_from,
)
from mixerlab.kernels.common.triton_elementwise import TINY


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """`x` rounded to the 8 bits of mantissa of a bfloat16, but still in float32: a later cast to `dtype` is exact.

    A cast to bfloat16 and back would need a conversion for every element, which is slower than these two operations.
    The product loses the lowest 16 bits, and the difference is exact.
    """
    return x if dtype == tl.float32 else tl.fma(x, -65536.0, x * 65537.0)


@triton.jit
def in_parts(x, dtype: tl.constexpr):
    """`x` as a sum of two tensors of `dtype`; if that is float32, the second is zero."""
    high = x.to(dtype)
    return high, (x - high).to(dtype)


@triton.jit
def dot_of_parts(x, high, low, PRECISION: tl.constexpr):
    """`x @ (high + low)` with at least 16 bits of mantissa."""
    if high.dtype == tl.float32:
        return tl.dot(x, high, input_precision=PRECISION)
    else:
        x_high = x.to(high.dtype)
        return tl.dot(x_high, low, tl.dot((x - x_high).to(high.dtype), high, tl.dot(x_high, high)))


@triton.jit
def apply(x, k, weights, from_start, high, low, ridge, HELD: tl.constexpr, FAST: tl.constexpr):
    """`x_i (H_i + diag(ridge))` for every row of a chunk. H before the chunk is `high + low`, or zero if not HELD."""
    image = ridge * x
    x = x.to(k.dtype)
    if HELD:
        read = tl.dot(x, high, input_precision=FAST)
        if k.dtype != tl.float32:
            read = tl.dot(x, low, read)
        image += from_start * read
    scores = tl.dot(x, tl.trans(k), input_precision=FAST) * weights
    if k.shape[1] > 64:  # rounding them would cost the solution of such a head 1% under a small ridge
        rounded, rest = in_parts(scores, k.dtype)
        image = tl.dot(rest, k, image)
        return tl.dot(rounded, k, image)
    return tl.dot(scores.to(k.dtype), k, image, input_precision=FAST)


@triton.jit
def conjugate_gradients(
    right, k, weights, from_start, high, low, ridge,
    HELD: tl.constexpr, ITERATIONS: tl.constexpr, TOLERANCE: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Solves for every row of a chunk, from zero, by the steps of `reference.conjugate_gradients`.

    A row has converged when its residual is at most TOLERANCE of its right-hand side. Its solution stays as it is from
    then on: more steps for the sake of later rows would let it depend on them. The loop ends when every row has
    converged, or after ITERATIONS. A row of zeros has converged from the start. A row with NaN counts as converged, and
    its solution is NaN in the same places.

    A direction is cast at the start of its step, so that the products take it from registers. If the loop carried it as
    a 16-bit tensor, Triton would pass it through shared memory, behind two barriers.
    """
    solution = 0.0 * right  # NaN where `right` is NaN
    residual, direction = right, right
    norm = tl.sum(right * right, 1)
    bound = TOLERANCE * TOLERANCE * norm
    taken = 0
    while (taken < ITERATIONS) & (tl.max((norm > bound).to(tl.int32), 0) > 0):
        direction = rounded(direction, k.dtype)
        image = apply(direction, k, weights, from_start, high, low, ridge, HELD, FAST)
        step = tl.where(norm > bound, norm / tl.maximum(tl.sum(direction * image, 1), TINY), 0.0)
        solution += step[:, None] * direction
        residual -= step[:, None] * image
        last = norm
        norm = tl.sum(residual * residual, 1)
        direction = residual + (norm / tl.maximum(last, TINY))[:, None] * direction
        taken += 1
    return solution


@triton.jit
def solve(
    n, right, k, weights, from_start, high, low, ridge,
    ITERATIONS: tl.constexpr, TOLERANCE: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The solutions of chunk `n`. Before the first chunk the state is zero, and the products with it are left out."""
    # Gradients of positions long before the loss may be so small that their squares underflow. They are scaled by a
    # power of two, which keeps 16-bit queries exact.
    largest = tl.maximum(tl.max(tl.abs(right), 1), TINY)
    scale = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)[:, None]
    right *= 1 / scale
    if n == 0:
        x = conjugate_gradients(right, k, weights, from_start, high, low, ridge, False, ITERATIONS, TOLERANCE, FAST)
    else:
        x = conjugate_gradients(right, k, weights, from_start, high, low, ridge, True, ITERATIONS, TOLERANCE, FAST)
    return scale * x


@triton.jit(do_not_specialize=["T"])
def states_kernel(
    k_ptr, v_ptr, log_decay_ptr, beta_ptr, key_states_ptr, value_states_ptr,
    T, V_ROW,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """One program per sequence and head: H and G before each chunk."""
    pid = tl.program_id(0)
    chunks = tl.cdiv(T, C)
    key_state = tl.zeros([D, D], dtype=tl.float32)
    value_state = tl.zeros([D, D], dtype=tl.float32)
    for n in range(chunks):
        inside, offsets = chunk_rows(n, pid, T, H, C)
        index = pid.to(tl.int64) * chunks + n
        store_state(key_states_ptr, index, n, key_state)
        store_state(value_states_ptr, index, n, value_state)
        cumulative, total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
        k = load_rows(k_ptr, offsets, inside, D)
        v = load_packed_rows(v_ptr, n, pid, T, V_ROW, inside, H, D, C)
        weighted = tl.trans((tl.exp(total - cumulative) * beta)[:, None] * k)
        key_state = tl.exp(total) * key_state + split_dot(weighted, k, PRECISE)
        value_state = tl.exp(total) * value_state + split_dot(weighted, v, PRECISE)


@triton.jit(do_not_specialize=["T", "SEQUENCES"])
def solve_kernel(
    q_ptr, k_ptr, v_ptr, log_decay_ptr, beta_ptr, ridge_ptr, key_states_ptr, value_states_ptr, out_ptr, solutions_ptr,
    T,
    V_ROW,  # elements from one position of v to the next
    SEQUENCES,  # that share a ridge
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, ITERATIONS: tl.constexpr, TOLERANCE: tl.constexpr,
    FAST: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """One program per chunk, sequence and head: the solutions x and the output."""
    n, pid = tl.program_id(0), tl.program_id(1)
    head = pid % H
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    cumulative, _total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
    weights, from_start = decay_between(cumulative, C) * beta[None, :], tl.exp(cumulative)[:, None]
    ridge = tl.load(ridge_ptr + (pid // (SEQUENCES * H) * H + head) * D + tl.arange(0, D))[None, :]
    high, low = in_parts(load_state(key_states_ptr, index, n, D), k_ptr.dtype.element_ty)
    q = load_rows(q_ptr, offsets, inside, D).to(tl.float32)
    k = load_rows(k_ptr, offsets, inside, D)
    x = solve(n, q, k, weights, from_start, high, low, ridge, ITERATIONS, TOLERANCE, FAST)
    store_rows(solutions_ptr, offsets, inside, x, D)

    v = load_packed_rows(v_ptr, n, pid, T, V_ROW, inside, H, D, C)
    value_state = load_state(value_states_ptr, index, n, D)
    scores = (split_dot(x, tl.trans(k), PRECISE) * weights).to(v.dtype)
    out = from_start * split_dot(x, value_state, PRECISE)
    out += tl.dot(scores, v, input_precision=FAST)
    store_rows(out_ptr, offsets, inside, out, D)


@triton.jit(do_not_specialize=["T", "SEQUENCES"])
def adjoint_kernel(
    d_out_ptr, k_ptr, v_ptr, log_decay_ptr, beta_ptr, ridge_ptr, key_states_ptr, value_states_ptr, solutions_ptr,
    dq_ptr, adjoints_ptr, d_reading_ptr, d_ridge_ptr,
    T, V_ROW, SEQUENCES,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, ITERATIONS: tl.constexpr, TOLERANCE: tl.constexpr,
    FAST: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """One program per chunk, sequence and head: the adjoint solutions y, which are dq.

    Also the gradient of `b_i` through what row i reads from the states (`d_reading`), and a part of that of the ridge.
    """
    n, pid = tl.program_id(0), tl.program_id(1)
    batch, head = (pid // H).to(tl.int64), pid % H
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    cumulative, _total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
    weights, from_start = decay_between(cumulative, C) * beta[None, :], tl.exp(cumulative)[:, None]
    ridge = tl.load(ridge_ptr + (pid // (SEQUENCES * H) * H + head) * D + tl.arange(0, D))[None, :]
    d_out = load_rows(d_out_ptr, offsets, inside, D)
    x = load_rows(solutions_ptr, offsets, inside, D)
    value_state = load_state(value_states_ptr, index, n, D)
    d_x = from_start * split_dot(d_out, tl.trans(value_state), PRECISE)
    d_reading = tl.sum(x * d_x, 1)

    v = load_packed_rows(v_ptr, n, pid, T, V_ROW, inside, H, D, C)
    k = load_rows(k_ptr, offsets, inside, D)
    scores = (tl.dot(d_out, tl.trans(v), input_precision=FAST) * weights).to(k.dtype)
    d_x += tl.dot(scores, k, input_precision=FAST)
    high, low = in_parts(load_state(key_states_ptr, index, n, D), k.dtype)
    y = solve(n, d_x, k, weights, from_start, high, low, ridge, ITERATIONS, TOLERANCE, FAST)
    store_rows(adjoints_ptr, offsets, inside, y, D)
    store_rows(dq_ptr, offsets, inside, y, D)
    # Loaded again, because the solve needs the registers that it would take.
    x = load_rows(solutions_ptr, offsets, inside, D)
    d_reading -= tl.sum(x * (from_start * dot_of_parts(y, high, low, PRECISE)), 1)
    tl.store(d_reading_ptr + offsets, d_reading, mask=inside)
    tl.store(d_ridge_ptr + ((batch * tl.num_programs(0) + n) * H + head) * D + tl.arange(0, D), -tl.sum(x * y, 0))


@triton.jit(do_not_specialize=["T"])
def backward_states_kernel(
    d_out_ptr, log_decay_ptr, beta_ptr, solutions_ptr, adjoints_ptr, d_key_states_ptr, d_value_states_ptr,
    T,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """One program per sequence and head: the gradients of H and G after each chunk."""
    pid = tl.program_id(0)
    chunks = tl.cdiv(T, C)
    d_key_state = tl.zeros([D, D], dtype=tl.float32)
    d_value_state = tl.zeros([D, D], dtype=tl.float32)
    for back in range(chunks):
        n = chunks - 1 - back
        inside, offsets = chunk_rows(n, pid, T, H, C)
        index = pid.to(tl.int64) * chunks + n
        store_state(d_key_states_ptr, index, back, d_key_state)
        store_state(d_value_states_ptr, index, back, d_value_state)
        cumulative, total, _beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
        x = load_rows(solutions_ptr, offsets, inside, D)
        y = load_rows(adjoints_ptr, offsets, inside, D)
        d_out = load_rows(d_out_ptr, offsets, inside, D)
        x_start = tl.trans(tl.exp(cumulative)[:, None] * x)
        d_value_state = tl.exp(total) * d_value_state + split_dot(x_start, d_out, PRECISE)
        d_key_state = tl.exp(total) * d_key_state - split_dot(x_start, y, PRECISE)


@triton.jit(do_not_specialize=["T"])
def backward_chunk_kernel(
    d_out_ptr, k_ptr, v_ptr, log_decay_ptr, beta_ptr, key_states_ptr, value_states_ptr, d_key_states_ptr,
    d_value_states_ptr, solutions_ptr, adjoints_ptr, d_reading_ptr, dk_ptr, dv_ptr, d_log_decay_ptr, d_beta_ptr,
    T, V_ROW,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, FAST: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """One program per chunk, sequence and head: dk, dv and the gradients of the gates.

    Position j enters every later t as `exp(b_t - b_j) beta_j (x_t.k_j) (v_j.d_out_t - y_t.k_j)`.
    """
    n, pid = tl.program_id(0), tl.program_id(1)
    inside, offsets = chunk_rows(n, pid, T, H, C)
    index = pid.to(tl.int64) * tl.num_programs(0) + n
    # All loads of rows first. Later, each would wait by itself behind the barriers of the products before it.
    k = load_rows(k_ptr, offsets, inside, D)
    v = load_packed_rows(v_ptr, n, pid, T, V_ROW, inside, H, D, C)
    d_out = load_rows(d_out_ptr, offsets, inside, D)
    x = load_rows(solutions_ptr, offsets, inside, D)
    y = load_rows(adjoints_ptr, offsets, inside, D)
    cumulative, total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
    decay, to_end = decay_between(cumulative, C), tl.exp(total - cumulative)[:, None]

    # Within the chunk. The factor beta is applied at the end.
    x_scores = split_dot(x, tl.trans(k), PRECISE) * decay
    y_scores = tl.dot(d_out, tl.trans(v), input_precision=FAST) - split_dot(y, tl.trans(k), PRECISE)
    # The same elements are summed along rows and columns, so that what cancels in the gradient of the decay cancels
    # exactly.
    gain = x_scores * y_scores
    d_beta = tl.sum(gain, 0)
    d_cumulative = tl.sum(gain * beta[None, :], 1)
    y_scores = tl.trans(y_scores * decay).to(k.dtype)
    x_scores = tl.trans(x_scores).to(k.dtype)
    d_v = tl.dot(x_scores, d_out, input_precision=FAST)
    d_k = tl.dot(y_scores, x.to(k.dtype), input_precision=FAST)
    d_k -= tl.dot(x_scores, y.to(k.dtype), input_precision=FAST)

    d_total = 0.0
    behind = tl.num_programs(0) - 1 - n
    if behind > 0:  # later chunks, through the states
        d_value_state = load_state(d_value_states_ptr, index, behind, D)
        value_state = load_state(value_states_ptr, index, n, D)
        d_key_state = load_state(d_key_states_ptr, index, behind, D)
        key_state = load_state(key_states_ptr, index, n, D)
        d_total += tl.sum(tl.sum(value_state * d_value_state + key_state * d_key_state, 1), 0)
        d_write = to_end * split_dot(k, d_value_state, PRECISE)
        d_later = tl.sum(v * d_write, 1)
        d_v += d_write
        d_write = tl.dot(v, tl.trans(d_value_state).to(v.dtype), input_precision=FAST)
        # k S k^T is half of k (S + S^T) k^T: so one product serves for S and S^T.
        through_key = split_dot(k, d_key_state + tl.trans(d_key_state), PRECISE)
        d_later += tl.sum(0.5 * to_end * k * through_key, 1)
        d_k += to_end * (d_write + through_key)
        d_beta += d_later
        d_total = tl.exp(total) * d_total + tl.sum(beta * d_later, 0)
    d_cumulative += tl.load(d_reading_ptr + offsets, mask=inside, other=0.0) - beta * d_beta

    store_rows(dv_ptr, offsets, inside, beta[:, None] * d_v, D)
    store_rows(dk_ptr, offsets, inside, beta[:, None] * d_k, D)
    tl.store(d_beta_ptr + offsets, d_beta, mask=inside)
    tl.store(d_log_decay_ptr + offsets, sum_from(d_cumulative) + d_total, mask=inside)
