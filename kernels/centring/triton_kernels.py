"""Centring in Triton: one program for each sequence and head, which walks over the chunks.

The mean before position t is that at t - 1, whose weights do not have the decay of t: it is defined where that decay
leaves nothing. The mean with t is `mean + share (x_t - mean)`, where `share` is the part of `beta_t` in the sum of the
weights.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_chunked import (
    chunk_rows,
    load_gates,
    load_packed_rows,
    load_rows,
    split_dot,
    store_rows,
    sum_from,
)
from mixerlab.kernels.common.triton_elementwise import TINY


@triton.jit
def inverse_of(x):
    """`1 / x`; 0 where all weights are 0."""
    return tl.where(x > TINY, 1.0 / tl.maximum(x, TINY), 0.0)


@triton.jit
def load_sums(pointer, index, D: tl.constexpr):
    """The decayed sums of `beta k` `[D]`, `beta v` `[D]` and beta before chunk `index`."""
    at = pointer + index * (2 * D + 1) + tl.arange(0, D)
    return tl.load(at), tl.load(at + D), tl.load(pointer + index * (2 * D + 1) + 2 * D)


@triton.jit
def earlier_weights(log_decay_ptr, offsets, inside, cumulative, C: tl.constexpr):
    """Of each position, up to the one before it: the decays from each earlier one `[C, C]` and from the chunk's start.

    Also the log decay of the position itself.
    """
    i = tl.arange(0, C)
    step = tl.load(log_decay_ptr + offsets, mask=inside, other=0.0)
    before = cumulative - step
    difference = before[:, None] - cumulative[None, :]
    return tl.exp(tl.where(i[:, None] > i[None, :], difference, float("-inf"))), tl.exp(before), step


@triton.jit
def means(x, weights, from_start, sums, inverse, PRECISION: tl.constexpr):
    """Of the rows before each."""
    return (split_dot(weights, x, PRECISION) + from_start[:, None] * sums[None, :]) * inverse[:, None]


@triton.jit
def backward_part(
    x, left, d_left, d_later, d_x_ptr, offsets, inside, sums, d_sums, weights, from_start, to_end, inverse, share, rest,
    D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of keys or values x, and what is `left` of them without the mean of the rows before.

    Returns the gradient of the share, and what they add to those of held, gain, both ends and the sums. Products with
    the mean are sums of those with the rows, so the mean itself is not needed.
    """
    d_share = tl.sum(left.to(tl.float32) * d_later, 1)
    d_mean = rest[:, None] * d_later - d_left
    d_start = inverse * tl.sum(d_mean * sums[None, :], 1)
    rounded = d_mean.to(x.dtype)
    gain = inverse[:, None] * tl.dot(rounded, tl.trans(x), input_precision=PRECISION)
    d_held = -inverse * (tl.sum(weights * gain, 1) + from_start * d_start)

    d_x = d_left + share[:, None] * d_later + to_end[:, None] * d_sums[None, :]
    d_x += tl.dot(tl.trans(weights * inverse[:, None]).to(x.dtype), rounded, input_precision=PRECISION)
    store_rows(d_x_ptr, offsets, inside, d_x, D)
    d_sum = tl.sum((from_start * inverse)[:, None] * d_mean, 0)
    return d_share, d_held, gain, d_start, tl.sum(x * d_sums[None, :], 1), d_sum


@triton.jit(do_not_specialize=["T"])
def forward_kernel(
    q_ptr, k_ptr, v_ptr, log_decay_ptr, beta_ptr, q_out_ptr, k_out_ptr, v_out_ptr, beta_out_ptr, mean_v_ptr, sums_ptr,
    T, V_ROW,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    chunks = tl.cdiv(T, C)
    columns = tl.arange(0, D)
    sum_k = tl.zeros([D], dtype=tl.float32)
    sum_v = tl.zeros([D], dtype=tl.float32)
    sum_beta = 0.0
    for n in range(chunks):
        inside, offsets = chunk_rows(n, pid, T, H, C)
        at = sums_ptr + (pid.to(tl.int64) * chunks + n) * (2 * D + 1)
        tl.store(at + columns, sum_k)
        tl.store(at + D + columns, sum_v)
        tl.store(at + 2 * D, sum_beta)
        k = load_rows(k_ptr, offsets, inside, D)
        v = load_packed_rows(v_ptr, n, pid, T, V_ROW, inside, H, D, C)
        cumulative, total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
        decay, from_start, step = earlier_weights(log_decay_ptr, offsets, inside, cumulative, C)
        weights = decay * beta[None, :]
        held = tl.sum(weights, 1) + from_start * sum_beta
        inverse = inverse_of(held)
        mean_k = means(k, weights, from_start, sum_k, inverse, PRECISION)
        mean_v = means(v, weights, from_start, sum_v, inverse, PRECISION)
        held *= tl.exp(step)
        inverse = inverse_of(held + beta)
        share = (beta * inverse)[:, None]
        k_out, v_out = k - mean_k, v - mean_v
        store_rows(k_out_ptr, offsets, inside, k_out, D)
        store_rows(v_out_ptr, offsets, inside, v_out, D)
        store_rows(mean_v_ptr, offsets, inside, mean_v + share * v_out, D)
        q = load_rows(q_ptr, offsets, inside, D)
        store_rows(q_out_ptr, offsets, inside, q - (mean_k + share * k_out), D)
        tl.store(beta_out_ptr + offsets, beta * held * inverse, mask=inside)

        to_end = tl.exp(total - cumulative) * beta
        sum_k = tl.exp(total) * sum_k + tl.sum(to_end[:, None] * k, 0)
        sum_v = tl.exp(total) * sum_v + tl.sum(to_end[:, None] * v, 0)
        sum_beta = tl.exp(total) * sum_beta + tl.sum(to_end, 0)


@triton.jit(do_not_specialize=["T"])
def backward_kernel(
    d_q_ptr, d_k_out_ptr, d_v_out_ptr, d_beta_out_ptr, d_mean_v_ptr, k_ptr, v_ptr, log_decay_ptr, beta_ptr, k_out_ptr,
    v_out_ptr, sums_ptr, d_k_ptr, d_v_ptr, d_log_decay_ptr, d_beta_ptr,
    T, V_ROW,
    H: tl.constexpr, D: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    chunks = tl.cdiv(T, C)
    d_sum_k = tl.zeros([D], dtype=tl.float32)
    d_sum_v = tl.zeros([D], dtype=tl.float32)
    d_sum_beta = 0.0
    for back in range(chunks):
        n = chunks - 1 - back
        inside, offsets = chunk_rows(n, pid, T, H, C)
        sum_k, sum_v, sum_beta = load_sums(sums_ptr, pid.to(tl.int64) * chunks + n, D)
        cumulative, total, beta = load_gates(log_decay_ptr, beta_ptr, offsets, inside)
        decay, from_start, step = earlier_weights(log_decay_ptr, offsets, inside, cumulative, C)
        weights, to_end = decay * beta[None, :], tl.exp(total - cumulative)
        held = tl.sum(weights, 1) + from_start * sum_beta
        inverse = inverse_of(held)
        gamma = tl.exp(step)
        inverse_with = inverse_of(gamma * held + beta)
        share, rest = beta * inverse_with, gamma * held * inverse_with  # whose sum is 1

        # The results are q - (mean + share k'), mean + share v', k', v' and beta (1 - share).
        d_share, d_held, gain, d_start, d_end, added_k = backward_part(
            load_rows(k_ptr, offsets, inside, D), load_rows(k_out_ptr, offsets, inside, D),
            load_rows(d_k_out_ptr, offsets, inside, D), -load_rows(d_q_ptr, offsets, inside, D),
            d_k_ptr, offsets, inside, sum_k, d_sum_k,
            weights, from_start, to_end * beta, inverse, share, rest, D, PRECISION,
        )  # fmt: skip
        more_share, more_held, more_gain, more_start, more_end, added_v = backward_part(
            load_packed_rows(v_ptr, n, pid, T, V_ROW, inside, H, D, C), load_rows(v_out_ptr, offsets, inside, D),
            load_rows(d_v_out_ptr, offsets, inside, D), load_rows(d_mean_v_ptr, offsets, inside, D),
            d_v_ptr, offsets, inside, sum_v, d_sum_v,
            weights, from_start, to_end * beta, inverse, share, rest, D, PRECISION,
        )  # fmt: skip
        d_beta_out = tl.load(d_beta_out_ptr + offsets, mask=inside, other=0.0)
        d_share += more_share - beta * d_beta_out
        d_held += more_held - share * gamma * inverse_with * d_share

        gain = decay * (gain + more_gain + d_held[:, None])
        d_later = to_end * (d_end + more_end + d_sum_beta)  # chunks, through the sums
        d_weight = tl.sum(gain, 0) + d_later
        d_before = tl.sum(gain * beta[None, :], 1) + from_start * (d_start + more_start + d_held * sum_beta)
        d_beta = rest * (d_beta_out + inverse_with * d_share) + d_weight
        tl.store(d_beta_ptr + offsets, d_beta, mask=inside)
        d_total = tl.exp(total) * (tl.sum(sum_k * d_sum_k + sum_v * d_sum_v, 0) + sum_beta * d_sum_beta)
        d_total += tl.sum(beta * d_later, 0)
        d_step = -share * rest * d_share - d_before
        d_log_decay = sum_from(d_before - beta * d_weight) + d_step + d_total
        tl.store(d_log_decay_ptr + offsets, d_log_decay, mask=inside)

        d_sum_k = tl.exp(total) * d_sum_k + added_k
        d_sum_v = tl.exp(total) * d_sum_v + added_v
        d_sum_beta = tl.exp(total) * d_sum_beta + tl.sum(from_start * d_held, 0)
