"""Triton kernels of the selective scan. A program takes one sequence and a block of channels, and loops over time.

A tile is `[BLOCK_T, ROWS, BLOCK_C, LANES]`, where ROWS x LANES are the N elements of the state. Up to 16 of these, and
all times of a tile, are in the registers of one thread. So a sum over the state stays within the thread, and to take a
row out of a tile or put it back costs nothing once compiled. (A reversed `tl.associative_scan` would do the same, but
in Triton 3.7 it shuffles every value across the warp.) The channels are spread over threads.

The forward kernel saves the state at the start of each tile of the backward kernel. That loops over its tiles from the
last to the first: it scans each again from the saved state, and then scans the gradient of the state back.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.addressing import addressable
from mixerlab.kernels.common.triton_elementwise import sigmoid, softplus
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.selective_scan.triton_tiles import (
    computed_once,
    load_rates,
    rates_of,
    row_as_tile,
    row_of,
    sum_over_channels,
    sum_over_state,
    with_row,
)

LN_2 = tl.constexpr(0.6931471805599453)
# Time steps of a tile, and tiles in flight to shared memory. The forward saves the state at each tile of the backward,
# whose steps divide its own.
FORWARD, BACKWARD = (4, 4), (2, 3)


@triton.jit
def _load_rows(x_ptr, strides, batch, time, channel, inside):
    """`[BLOCK_T, BLOCK_C]` of x `[batch, T, channels]`; zeros outside."""
    at = x_ptr + batch * strides[0] + time[:, None] * strides[1] + channel[None, :]
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _load_b_and_c(bc_ptr, strides, batch, time, n, is_time, N: tl.constexpr):
    """B and C, `[BLOCK_T, ROWS, LANES]` each; zeros outside."""
    inside = is_time[:, None, None] & (n < N)[None, :, :]
    at = bc_ptr + batch * strides[0] + time[:, None, None] * strides[1] + n[None, :, :]
    return tl.load(at, mask=inside, other=0.0), tl.load(at + N, mask=inside, other=0.0)


@triton.jit
def _scan_and_save(decay, x, state, starts, start, row, channel, n, T, CHANNELS, EVERY: tl.constexpr, N: tl.constexpr):
    """The states after each step of a tile. Every EVERY steps the state is stored at `starts`, which moves on."""
    states = x
    for r in tl.static_range(x.shape[0]):
        if r % EVERY == 0:
            width = tl.where(start + r < T, CHANNELS, 0)
            saved = (channel < width)[None, :, None] & (n < N)[:, None, :]
            tl.store(starts, state, mask=saved)
            starts += N * CHANNELS
        state = tl.fma(row_of(decay, row, r), state, row_of(x, row, r))
        states = with_row(states, row, r, state[None, :, :, :])
    return states, starts


@triton.jit
def _scan_again(decay, x, state, row):
    """The states before and after each step of a tile, from the state at its start."""
    before, after = x, x
    for r in tl.static_range(x.shape[0]):
        before = with_row(before, row, r, state)
        state = tl.fma(row_as_tile(decay, row, r), state, row_as_tile(x, row, r))
        after = with_row(after, row, r, state)
    return before, after


@triton.jit
def _gate_gradients(grad, ungated, z):
    """Of `y = ungated z sigmoid(z)`: the gradients of z and of `ungated`."""
    grad, ungated = grad.to(tl.float32), ungated.to(tl.float32)
    gate = sigmoid(z)
    grad_z = computed_once(grad * ungated * gate * (1.0 + z * (1.0 - gate)))
    return grad_z, computed_once(grad * z * gate)


@triton.jit
def _scan_gradients(grad_y, step, decay, c, before, grad_state, grad_rate, row):
    """Scans the gradient of the state back over a tile. Later steps give its last state the gradient `grad_state`.

    Returns the gradients of the states after each step and of the exponents `step rate`; then the gradient of the state
    before the tile, and `grad_rate` with this tile's part added.
    """
    grad_states, grad_exponent = before, before
    for r in tl.static_range(before.shape[0] - 1, -1, -1):
        of_y, of_step = row_as_tile(grad_y[:, None, :, None], row, r), row_as_tile(step[:, None, :, None], row, r)
        grad_state = tl.fma(of_y, row_as_tile(c[:, :, None, :], row, r), grad_state)
        grad_states = with_row(grad_states, row, r, grad_state)
        grad_state *= row_as_tile(decay, row, r)
        exponent = grad_state * row_as_tile(before, row, r)
        grad_exponent = with_row(grad_exponent, row, r, exponent)
        grad_rate = tl.fma(exponent, of_step, grad_rate)
    return grad_states, grad_exponent, grad_state, grad_rate


@triton.jit
def _sum_b_and_c(grad_b, grad_c, HALVINGS: tl.constexpr):
    """The gradients of B and C `[BLOCK_T, ROWS, BLOCK_C, LANES]` summed over channels: `[BLOCK_T, 2 ROWS LANES]`."""
    joined = tl.permute(tl.join(grad_b, grad_c), (0, 4, 1, 3, 2))
    STEPS: tl.constexpr = grad_b.shape[0]
    STATES: tl.constexpr = grad_b.shape[1] * grad_b.shape[3]
    sums = sum_over_channels(tl.reshape(joined, (STEPS * 2 * STATES, grad_b.shape[2])), HALVINGS)
    return tl.reshape(sums, (STEPS, 2 * STATES))


@triton.jit(do_not_specialize=["T"])
def scan_forward_kernel(
    u_ptr, delta_ptr, z_ptr, bc_ptr, a_ptr, d_ptr, bias_ptr, y_ptr, ungated_ptr, starts_ptr,
    T, CHANNELS, group_size,
    group_strides,  # of A (of a group and of a channel), D and delta_bias
    u_strides,  # of batch and time, as those below
    delta_strides, z_strides, bc_strides,
    EVERY: tl.constexpr, N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr,
    LANES: tl.constexpr, FROM_LOG: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    group = batch // group_size
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_channel = channel < CHANNELS
    n = tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    row = tl.arange(0, BLOCK_T)

    is_rate = is_channel[None, :, None] & (n < N)[:, None, :]
    rates = a_ptr + group * group_strides[0] + channel[None, :, None] * group_strides[1] + n[:, None, :]
    rate = rates_of(tl.load(rates, mask=is_rate, other=0.0), FROM_LOG)  # [ROWS, BLOCK_C, LANES]
    skip = tl.load(d_ptr + group * group_strides[2] + channel, mask=is_channel, other=0.0)
    bias = tl.load(bias_ptr + group * group_strides[3] + channel, mask=is_channel, other=0.0)

    starts = starts_ptr + batch * tl.cdiv(T, EVERY) * N * CHANNELS
    starts += n[:, None, :] * CHANNELS + channel[None, :, None]
    state = tl.zeros((ROWS, BLOCK_C, LANES), dtype=tl.float32)
    for start in tl.range(0, T, BLOCK_T, num_stages=STAGES):
        time = start + row
        is_time = time < T
        inside = is_time[:, None] & is_channel[None, :]
        u = _load_rows(u_ptr, u_strides, batch, time, channel, inside)
        delta = _load_rows(delta_ptr, delta_strides, batch, time, channel, inside)
        z = _load_rows(z_ptr, z_strides, batch, time, channel, inside)
        b, c = _load_b_and_c(bc_ptr, bc_strides, batch, time, n, is_time, N)
        u, z = u.to(tl.float32), z.to(tl.float32)
        step = softplus(delta.to(tl.float32) + bias[None, :])

        decay = tl.exp2(step[:, None, :, None] * rate[None, :, :, :])
        x = (step * u)[:, None, :, None] * b[:, :, None, :]
        states, starts = _scan_and_save(decay, x, state, starts, start, row, channel, n, T, CHANNELS, EVERY, N)
        state = row_of(states, row, BLOCK_T - 1)  # from the tile: else Triton carries it in two register layouts
        y = sum_over_state(states * c[:, :, None, :]) + skip[None, :] * u
        rows = (batch * T + time)[:, None] * CHANNELS + channel[None, :]
        tl.store(ungated_ptr + rows, y, mask=inside)
        y = y * z * sigmoid(z)
        tl.store(y_ptr + rows, y, mask=inside)


@triton.jit(do_not_specialize=["T"])
def scan_backward_kernel(
    u_ptr, delta_ptr, z_ptr, bc_ptr, a_ptr, d_ptr, bias_ptr, ungated_ptr, starts_ptr, grad_ptr, grad_u_ptr,
    grad_delta_ptr, grad_z_ptr, bc_sums_ptr, sums_ptr,
    T, CHANNELS, group_size,
    group_strides,  # as in the forward
    u_strides, delta_strides, z_strides, bc_strides, grad_strides, grad_z_strides,
    N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr,
    FROM_LOG: tl.constexpr, HALVINGS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    group = batch // group_size
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    is_channel = channel < CHANNELS
    n = tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    row = tl.arange(0, BLOCK_T)
    # Which of B (0) and C (1), and which state, a sum over channels belongs to.
    which = tl.arange(0, 2 * ROWS * LANES) // (ROWS * LANES)
    which_n = tl.arange(0, 2 * ROWS * LANES) % (ROWS * LANES)

    is_rate = is_channel[None, :, None] & (n < N)[:, None, :]
    rate = load_rates(a_ptr + group * group_strides[0], channel, CHANNELS, group_strides[1], N, ROWS, LANES, FROM_LOG)
    skip = tl.load(d_ptr + group * group_strides[2] + channel, mask=is_channel, other=0.0)
    bias = tl.load(bias_ptr + group * group_strides[3] + channel, mask=is_channel, other=0.0)

    tiles = tl.cdiv(T, BLOCK_T)
    starts = starts_ptr + (batch * tiles + tiles - 1) * N * CHANNELS
    starts += n[:, None, :] * CHANNELS + channel[None, :, None]
    grad_state = tl.zeros((1, ROWS, BLOCK_C, LANES), dtype=tl.float32)
    grad_rate = tl.zeros((1, ROWS, BLOCK_C, LANES), dtype=tl.float32)
    grad_skip = tl.zeros((BLOCK_T, BLOCK_C), dtype=tl.float32)
    grad_bias = tl.zeros((BLOCK_T, BLOCK_C), dtype=tl.float32)
    for tile in tl.range(tiles, num_stages=STAGES):
        time = (tiles - 1 - tile) * BLOCK_T + row
        is_time = time < T
        inside = is_time[:, None] & is_channel[None, :]
        u = _load_rows(u_ptr, u_strides, batch, time, channel, inside)
        delta = _load_rows(delta_ptr, delta_strides, batch, time, channel, inside)
        z = _load_rows(z_ptr, z_strides, batch, time, channel, inside)
        grad = _load_rows(grad_ptr, grad_strides, batch, time, channel, inside)
        rows = (batch * T + time)[:, None] * CHANNELS + channel[None, :]
        ungated = tl.load(ungated_ptr + rows, mask=inside, other=0.0)
        b, c = _load_b_and_c(bc_ptr, bc_strides, batch, time, n, is_time, N)
        u, z = u.to(tl.float32), z.to(tl.float32)
        state = tl.load(starts, mask=is_rate, other=0.0).to(tl.float32)[None, :, :, :]
        starts -= N * CHANNELS

        # Steps after T have gradient 0, and so add nothing below.
        logit = delta.to(tl.float32) + bias[None, :]
        step = computed_once(softplus(logit))
        scaled = step * u
        decay = tl.exp2(step[:, None, :, None] * rate)
        before, after = _scan_again(decay, scaled[:, None, :, None] * b[:, :, None, :], state, row)

        grad_z, grad_y = _gate_gradients(grad, ungated, z)
        grad_states, grad_exponent, grad_state, grad_rate = _scan_gradients(
            grad_y, step, decay, c, before, grad_state, grad_rate, row
        )
        grad_x = sum_over_state(grad_states * b[:, :, None, :])
        grad_step = grad_x * u + sum_over_state(grad_exponent * rate) * LN_2
        grad_logit = computed_once(grad_step * sigmoid(logit))
        grad_u = grad_x * step + grad_y * skip[None, :]
        grad_skip += grad_y * u
        grad_bias += grad_logit
        grad_bc = _sum_b_and_c(grad_states * scaled[:, None, :, None], after * grad_y[:, None, :, None], HALVINGS)

        tl.store(grad_u_ptr + rows, grad_u, mask=inside)
        tl.store(grad_delta_ptr + rows, grad_logit, mask=inside)
        z_rows = batch * grad_z_strides[0] + time[:, None] * grad_z_strides[1] + channel[None, :]
        tl.store(grad_z_ptr + z_rows, grad_z, mask=inside)
        part = (tl.program_id(0) * tl.num_programs(1) + batch) * T
        sums = bc_sums_ptr + (part + time)[:, None] * (2 * N) + (which * N + which_n)[None, :]
        tl.store(sums, grad_bc, mask=is_time[:, None] & (which_n < N)[None, :])

    if FROM_LOG:
        grad_rate *= rate * LN_2
    sums = sums_ptr + batch * (N + 2) * CHANNELS
    grad_rate = tl.reshape(grad_rate, (ROWS, BLOCK_C, LANES))
    tl.store(sums + channel[None, :, None] * N + n[:, None, :], grad_rate, mask=is_rate)
    tl.store(sums + N * CHANNELS + channel, tl.sum(grad_skip, axis=0), mask=is_channel)
    tl.store(sums + (N + 1) * CHANNELS + channel, tl.sum(grad_bias, axis=0), mask=is_channel)


def forward(u, delta, delta_bias, A, BC, D, z, *, from_log: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """`scan` of `kernels.selective_scan.operator`: the output, the same before its gate, and the saved states.

    With `from_log`, the argument `A` is log(-A), here and in `backward`, which then returns its gradient.
    """
    batch, length, channels = u.shape
    groups, _, n = A.shape
    blocks = _blocks(n, *FORWARD)
    u, delta, z, BC, A, D, delta_bias = (addressable(x) for x in (u, delta, z, BC, A, D, delta_bias))
    results = empty_results(u, A)
    scan_forward_kernel[(triton.cdiv(channels, blocks["BLOCK_C"]), batch)](
        *(u, delta, z, BC, A, D, delta_bias, *results),
        *(length, channels, batch // groups),
        _group_strides(A, D, delta_bias),
        *_row_strides(u, delta, z, BC),
        EVERY=BACKWARD[0],
        FROM_LOG=from_log,
        **blocks,
    )
    return results


def empty_results(u: Tensor, A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for those of `forward`."""
    batch, length, channels = u.shape
    starts = u.new_empty((batch, triton.cdiv(length, BACKWARD[0]), A.shape[2], channels))
    return u.new_empty(u.shape), u.new_empty(u.shape), starts


def backward(
    grad, u, delta, delta_bias, A, BC, D, z, ungated, starts, grad_z, *, from_log: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Writes `grad_z`, whose last stride is one.

    Returns the gradients of `u` and `delta`; those of B and C from each block of channels, `[blocks, batch * T, 2 N]`,
    which the caller adds up; and those of A, D and `delta_bias`, `[groups, channels * (N + 2)]`. No atomics: the result
    has the same bits every time.
    """
    batch, length, channels = u.shape
    groups, _, n = A.shape
    blocks = _blocks(n, *BACKWARD)
    channel_blocks = triton.cdiv(channels, blocks["BLOCK_C"])
    inputs = grad, u, delta, z, BC, A, D, delta_bias
    grad, u, delta, z, BC, A, D, delta_bias = (addressable(x) for x in inputs)
    grad_u, grad_delta = (x.new_empty(x.shape) for x in (u, delta))
    # Programs that contribute to one sum write to a slot each.
    bc_sums = u.new_empty((channel_blocks, batch * length, 2 * n))
    sums = u.new_empty((groups, batch // groups, channels * (n + 2)), dtype=torch.float32)
    scan_backward_kernel[(channel_blocks, batch)](
        *(u, delta, z, BC, A, D, delta_bias, ungated, starts, grad),
        *(grad_u, grad_delta, grad_z, bc_sums, sums),
        *(length, channels, batch // groups),
        _group_strides(A, D, delta_bias),
        *_row_strides(u, delta, z, BC, grad, grad_z),
        HALVINGS=blocks["BLOCK_C"].bit_length() - 1,
        FROM_LOG=from_log,
        **blocks,
    )
    return grad_u, grad_delta, bc_sums, sum_parts(sums, torch.float32)


def _group_strides(A: Tensor, D: Tensor, delta_bias: Tensor) -> tuple[int, ...]:
    """As the kernels take them. The parameters of a population are slices of one tensor, so they have gaps."""
    return *A.stride()[:2], D.stride(0), delta_bias.stride(0)


def _row_strides(*tensors: Tensor) -> list[tuple[int, ...]]:
    """The batch and time strides of each."""
    return [x.stride()[:2] for x in tensors]


def _blocks(n: int, steps: int, stages: int) -> dict[str, int]:
    """The compile-time arguments: one warp, with a thread for up to 16 elements of a channel's state.

    If N is at most 16, only sums over channels cross threads.
    """
    padded = max(4, triton.next_power_of_2(n))
    lanes = max(1, padded // 16)
    return {
        "N": n,
        "BLOCK_T": steps,
        "BLOCK_C": 32 // lanes,
        "ROWS": padded // lanes,
        "LANES": lanes,
        "STAGES": stages,
        "num_warps": 1,
    }
