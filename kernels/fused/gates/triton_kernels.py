"""Triton kernels of the gates. The backward computes them again from their logits; only the inputs are saved.

A decay is of a head or of a channel: there are C in each row, and H betas.

The gradients of the parameters are sums over all positions. In the backward a fixed number of programs stride over the
rows, and their parts are added up afterwards. No atomics: the result has the same bits every time.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_elementwise import softplus

# One build for any number of rows, and for parameters at any place in the population.
ANY = {
    "do_not_specialize": ["N", "decay_bias_group", "log_rate_group", "beta_bias_group"],
    "do_not_specialize_on_alignment": ["decay_bias_ptr", "log_rate_ptr", "beta_bias_ptr"],
}


@triton.jit
def _parameter(ptr, at, mask):
    """In float32; zero without a tensor."""
    if ptr is None:
        return tl.zeros_like(at).to(tl.float32)
    else:
        return tl.load(ptr + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _logits(ptr, group, row, column, mask, group_stride, row_stride, bias):
    return tl.load(ptr + group * group_stride + row * row_stride + column, mask=mask, other=0.0).to(tl.float32) + bias


@triton.jit(**ANY)
def gates_forward_kernel(
    decay_logit_ptr, beta_logit_ptr, decay_bias_ptr, log_rate_ptr, beta_bias_ptr, log_decay_ptr, beta_ptr,
    N, decay_group, decay_row, beta_group, beta_row, decay_bias_group, log_rate_group, beta_bias_group,
    C: tl.constexpr, H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    channel, head = tl.arange(0, BLOCK_C)[None, :], tl.arange(0, BLOCK_H)[None, :]
    decay_bias = _parameter(decay_bias_ptr, group * decay_bias_group + channel, channel < C)
    log_rate = _parameter(log_rate_ptr, group * log_rate_group + channel, channel < C)
    beta_bias = _parameter(beta_bias_ptr, group * beta_bias_group + head, head < H)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None].to(tl.int64)
    mask, mask_h = (row < N) & (channel < C), (row < N) & (head < H)
    z = _logits(decay_logit_ptr, group, row, channel, mask, decay_group, decay_row, decay_bias)
    log_decay = -softplus(-z) if log_rate_ptr is None else -tl.exp(log_rate) * softplus(z)
    beta = tl.sigmoid(_logits(beta_logit_ptr, group, row, head, mask_h, beta_group, beta_row, beta_bias))
    tl.store(log_decay_ptr + (group * N + row) * C + channel, log_decay, mask=mask)
    tl.store(beta_ptr + (group * N + row) * H + head, beta, mask=mask_h)


@triton.jit(**ANY)
def gates_backward_kernel(
    d_log_decay_ptr, d_beta_ptr, decay_logit_ptr, beta_logit_ptr, decay_bias_ptr, log_rate_ptr, beta_bias_ptr,
    d_decay_logit_ptr, d_beta_logit_ptr, sums_ptr,
    N, decay_group, decay_row, beta_group, beta_row, decay_bias_group, log_rate_group, beta_bias_group,
    C: tl.constexpr, H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    part, parts = tl.program_id(0), tl.num_programs(0)
    channel, head = tl.arange(0, BLOCK_C)[None, :], tl.arange(0, BLOCK_H)[None, :]
    decay_bias = _parameter(decay_bias_ptr, group * decay_bias_group + channel, channel < C)
    log_rate = _parameter(log_rate_ptr, group * log_rate_group + channel, channel < C)
    beta_bias = _parameter(beta_bias_ptr, group * beta_bias_group + head, head < H)
    of_decay_bias = tl.zeros((ROWS, BLOCK_C), dtype=tl.float32)
    of_log_rate = tl.zeros((ROWS, BLOCK_C), dtype=tl.float32)
    of_beta_bias = tl.zeros((ROWS, BLOCK_H), dtype=tl.float32)
    for start in range(part * ROWS, N, parts * ROWS):
        row = (start + tl.arange(0, ROWS))[:, None].to(tl.int64)
        mask, mask_h = (row < N) & (channel < C), (row < N) & (head < H)
        at, at_h = (group * N + row) * C + channel, (group * N + row) * H + head
        d_log_decay = tl.load(d_log_decay_ptr + at, mask=mask, other=0.0)
        d_beta = tl.load(d_beta_ptr + at_h, mask=mask_h, other=0.0)
        z = _logits(decay_logit_ptr, group, row, channel, mask, decay_group, decay_row, decay_bias)
        if log_rate_ptr is None:
            d_z = d_log_decay * tl.sigmoid(-z)
        else:
            d_softplus = -tl.exp(log_rate) * d_log_decay
            d_z = d_softplus * tl.sigmoid(z)
            of_log_rate += d_softplus * softplus(z)
        beta = tl.sigmoid(_logits(beta_logit_ptr, group, row, head, mask_h, beta_group, beta_row, beta_bias))
        d_beta *= beta * (1.0 - beta)
        tl.store(d_decay_logit_ptr + at, d_z, mask=mask)
        tl.store(d_beta_logit_ptr + at_h, d_beta, mask=mask_h)
        of_decay_bias += d_z
        of_beta_bias += d_beta
    sums_ptr += (group * parts + part) * (2 * C + H)
    tl.store(sums_ptr + channel, tl.sum(of_decay_bias, axis=0, keep_dims=True), mask=channel < C)
    tl.store(sums_ptr + C + channel, tl.sum(of_log_rate, axis=0, keep_dims=True), mask=channel < C)
    tl.store(sums_ptr + 2 * C + head, tl.sum(of_beta_bias, axis=0, keep_dims=True), mask=head < H)
