"""Triton kernels of Mamba's two small projections, between which the 2 N + rank elements of a row stay on the chip.

Memory traffic bounds them, so what counts is how often a tensor as wide as the channels is read or written.
Forward: u is read once, for dt, B and C, and delta is computed from dt while that is in registers.
Backward: the sums for B and C over blocks of channels are added up, the gradient of dt is computed from that of delta,
and the parts that come from all three are added to the gradient of u, which is read and written once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride

# (rows, channels, stages, warps). Float32 products do not use the tensor cores; with a smaller tile their sums stay in
# registers.
FORWARD = {torch.bfloat16: (128, 64, 2, 8), torch.float32: (32, 32, 1, 4)}
BACKWARD = {torch.bfloat16: (64, 64, 4, 4), torch.float32: (32, 32, 1, 4)}


@triton.jit
def _tile(N, ROWS: tl.constexpr):
    """This program's group (int64), its rows `[ROWS, 1]` from 0 on, which of them exist, and the rows before the first.

    The last is a count over all groups.
    """
    group = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    return group, row, row < N - first, group * N + first


@triton.jit
def _weights(pointer, first, rows, row_stride, ROWS: tl.constexpr, column, columns):
    """Rows from `first` on, and the columns `column`, of a matrix; zeros for rows and columns that it does not have."""
    row = tl.arange(0, ROWS)
    mask = (row < rows)[:, None] & (column < columns)[None, :]
    return tl.load(pointer + (first + row)[:, None] * row_stride + column[None, :], mask=mask, other=0.0)


@triton.jit(do_not_specialize=["N"])
def scan_inputs_kernel(
    u_ptr, x_proj_ptr, dt_proj_ptr, dt_ptr, delta_ptr, bc_ptr,
    N, CHANNELS, x_proj_group, x_proj_row, dt_proj_group,
    DT_PROJ_ROW: tl.constexpr, RANK: tl.constexpr, STATES: tl.constexpr, BLOCK_RANK: tl.constexpr,
    BLOCK_STATES: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    group, row, inside, before = _tile(N, ROWS)
    x_proj_ptr += group * x_proj_group
    dt_proj_ptr += group * dt_proj_group
    dtype = u_ptr.dtype.element_ty

    dt = tl.zeros((ROWS, BLOCK_RANK), dtype=tl.float32)
    bc = tl.zeros((ROWS, BLOCK_STATES), dtype=tl.float32)
    for start in tl.range(0, CHANNELS, BLOCK_C, num_stages=STAGES):
        c = start + tl.arange(0, BLOCK_C)
        mask = inside & (c < CHANNELS)[None, :]
        u = tl.load(u_ptr + before * CHANNELS + row * CHANNELS + c[None, :], mask=mask, other=0.0)
        for_dt = _weights(x_proj_ptr, 0, RANK, x_proj_row, BLOCK_RANK, c, CHANNELS)
        for_bc = _weights(x_proj_ptr, RANK, STATES, x_proj_row, BLOCK_STATES, c, CHANNELS)
        dt = tl.dot(u, tl.trans(for_dt), dt, input_precision="ieee")
        bc = tl.dot(u, tl.trans(for_bc), bc, input_precision="ieee")

    n = tl.arange(0, BLOCK_STATES)[None, :]
    r = tl.arange(0, BLOCK_RANK)
    dt, bc = dt.to(dtype), bc.to(dtype)  # rounded, as a product in that dtype would be
    tl.store(bc_ptr + before * STATES + row * STATES + n, bc, mask=inside & (n < STATES))
    tl.store(dt_ptr + before * RANK + row * RANK + r[None, :], dt, mask=inside & (r < RANK)[None, :])

    for start in tl.range(0, CHANNELS, BLOCK_C, num_stages=STAGES):
        c = start + tl.arange(0, BLOCK_C)
        weights = _weights(dt_proj_ptr, start, CHANNELS - start, DT_PROJ_ROW, BLOCK_C, r, RANK)
        delta = tl.dot(dt, tl.trans(weights), input_precision="ieee").to(dtype)
        mask = inside & (c < CHANNELS)[None, :]
        tl.store(delta_ptr + before * CHANNELS + row * CHANNELS + c[None, :], delta, mask=mask)


@triton.jit(do_not_specialize=["N", "parts"])
def scan_inputs_backward_kernel(
    bc_sums_ptr, grad_delta_ptr, x_proj_ptr, dt_proj_ptr, grad_dt_bc_ptr, grad_u_ptr,
    N, CHANNELS, parts, x_proj_group, x_proj_row, dt_proj_group,
    DT_PROJ_ROW: tl.constexpr, RANK: tl.constexpr, STATES: tl.constexpr, BLOCK_RANK: tl.constexpr,
    BLOCK_STATES: tl.constexpr, BLOCK_C: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    group, row, inside, before = _tile(N, ROWS)
    x_proj_ptr += group * x_proj_group
    dt_proj_ptr += group * dt_proj_group
    dtype = grad_u_ptr.dtype.element_ty
    n = tl.arange(0, BLOCK_STATES)[None, :]
    r = tl.arange(0, BLOCK_RANK)

    sums = tl.zeros((ROWS, BLOCK_STATES), dtype=tl.float32)
    for part in tl.range(parts, num_stages=STAGES):
        at = (part * tl.num_programs(1) * N + before) * STATES + row * STATES + n
        sums += tl.load(bc_sums_ptr + at, mask=inside & (n < STATES), other=0.0).to(tl.float32)
    grad_bc = sums.to(dtype)

    sums_dt = tl.zeros((ROWS, BLOCK_RANK), dtype=tl.float32)
    for start in tl.range(0, CHANNELS, BLOCK_C, num_stages=STAGES):
        c = start + tl.arange(0, BLOCK_C)
        mask = inside & (c < CHANNELS)[None, :]
        grad_delta = tl.load(grad_delta_ptr + before * CHANNELS + row * CHANNELS + c[None, :], mask=mask, other=0.0)
        weights = _weights(dt_proj_ptr, start, CHANNELS - start, DT_PROJ_ROW, BLOCK_C, r, RANK)
        sums_dt = tl.dot(grad_delta, weights, sums_dt, input_precision="ieee")
    grad_dt = sums_dt.to(dtype)

    grad_dt_bc = grad_dt_bc_ptr + before * (RANK + STATES) + row * (RANK + STATES)
    tl.store(grad_dt_bc + r[None, :], grad_dt, mask=inside & (r < RANK)[None, :])
    tl.store(grad_dt_bc + RANK + n, grad_bc, mask=inside & (n < STATES))

    for start in tl.range(0, CHANNELS, BLOCK_C, num_stages=STAGES):
        c = start + tl.arange(0, BLOCK_C)
        mask = inside & (c < CHANNELS)[None, :]
        at = grad_u_ptr + before * CHANNELS + row * CHANNELS + c[None, :]
        grad_u = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        of_dt = _weights(x_proj_ptr, 0, RANK, x_proj_row, BLOCK_RANK, c, CHANNELS)
        of_bc = _weights(x_proj_ptr, RANK, STATES, x_proj_row, BLOCK_STATES, c, CHANNELS)
        grad_u = tl.dot(grad_dt, of_dt, grad_u, input_precision="ieee")
        grad_u = tl.dot(grad_bc, of_bc, grad_u, input_precision="ieee")
        tl.store(at, grad_u, mask=mask)


def scan_inputs(u: Tensor, x_proj: Tensor, dt_proj: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs of the scan that come from contiguous `u` `[batch, T, channels]`: `dt`, `delta`, and B and C in one.

    `x_proj` is `[groups, rank + 2 N, channels]` and `dt_proj` `[groups, channels, rank]`, in the dtype of `u`. B and C
    `[batch, T, 2 N]` are rounded to that dtype and converted to float32. They are small and every channel reads them:
    so they are converted once here, not in each thread of the scan.
    """
    batch, length, channels = u.shape
    groups, _, rank = dt_proj.shape
    states = x_proj.shape[1] - rank
    x_proj, dt_proj = unit_stride(x_proj), unit_stride(dt_proj)
    dt = u.new_empty((batch, length, rank))
    delta = torch.empty_like(u)
    bc = u.new_empty((batch, length, states), dtype=torch.float32)
    rows = batch // groups * length
    blocks = _blocks(*FORWARD[u.dtype], x_proj, dt_proj)
    scan_inputs_kernel[triton.cdiv(rows, blocks["ROWS"]), groups](
        u, x_proj, dt_proj, dt, delta, bc, rows, channels, *x_proj.stride()[:2], dt_proj.stride(0), **blocks
    )
    return dt, delta, bc


def scan_inputs_backward(
    bc_sums: Tensor, grad_delta: Tensor, x_proj: Tensor, dt_proj: Tensor, grad_u: Tensor
) -> Tensor:
    """The gradient of `[dt, B, C]`, `[batch, T, rank + 2 N]`. Its part of the gradient of u is added to `grad_u`.

    `bc_sums` `[blocks, batch * T, 2 N]` are the gradients of B and C from each block of channels. All tensors
    but the two matrices are contiguous.
    """
    batch, length, channels = grad_u.shape
    groups, _, rank = dt_proj.shape
    states = x_proj.shape[1] - rank
    x_proj, dt_proj = unit_stride(x_proj), unit_stride(dt_proj)
    grad_dt_bc = grad_u.new_empty((batch, length, rank + states))
    rows = batch // groups * length
    blocks = _blocks(*BACKWARD[grad_u.dtype], x_proj, dt_proj)
    scan_inputs_backward_kernel[triton.cdiv(rows, blocks["ROWS"]), groups](
        *(bc_sums, grad_delta, x_proj, dt_proj, grad_dt_bc, grad_u),
        *(rows, channels, len(bc_sums), *x_proj.stride()[:2], dt_proj.stride(0)),
        **blocks,
    )
    return grad_dt_bc


def _blocks(rows: int, channels: int, stages: int, warps: int, x_proj: Tensor, dt_proj: Tensor) -> dict[str, int]:
    """The compile-time arguments. Products on the tensor cores need at least 16 elements along each side."""
    rank = dt_proj.shape[2]
    states = x_proj.shape[1] - rank
    return {
        "DT_PROJ_ROW": dt_proj.stride(1),  # a constant, so that the 16 bytes of a rank of 8 in bfloat16 are one load
        "RANK": rank,
        "STATES": states,
        "BLOCK_RANK": max(16, triton.next_power_of_2(rank)),
        "BLOCK_STATES": max(16, triton.next_power_of_2(states)),
        "BLOCK_C": channels,
        "ROWS": rows,
        "STAGES": stages,
        "num_warps": warps,
    }
