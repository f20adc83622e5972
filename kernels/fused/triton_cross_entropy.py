"""Triton kernels of the cross-entropy: a program owns whole rows and walks the vocabulary in blocks."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.fused.cross_entropy import IGNORE_INDEX

TILE, MAX_BLOCK_V, WARPS = 2048, 1024, 4
IGNORE = tl.constexpr(IGNORE_INDEX)
NOTHING = tl.constexpr(-1e30)  # a logit that is not there; finite, so that differences are numbers


@triton.jit(do_not_specialize=["N"])
def _forward_kernel(
    logits_ptr, targets_ptr, losses_ptr, log_sums_ptr, N, V, logits_row, ROWS: tl.constexpr, BLOCK_V: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target = tl.load(targets_ptr + row, mask=row < N, other=IGNORE)
    # Of each place in a block over all blocks: the largest logit, the sum relative to it, and the target's logit.
    largest = tl.full((ROWS, BLOCK_V), NOTHING, dtype=tl.float32)
    total = tl.zeros((ROWS, BLOCK_V), dtype=tl.float32)
    hit = tl.zeros((ROWS, BLOCK_V), dtype=tl.float32)
    for start in range(0, V, BLOCK_V):
        token = start + tl.arange(0, BLOCK_V)
        mask = (row < N)[:, None] & (token < V)[None, :]
        x = tl.load(logits_ptr + row[:, None] * logits_row + token[None, :], mask=mask, other=NOTHING)
        x = x.to(tl.float32)
        new_largest = tl.maximum(largest, x)
        total = total * tl.exp(largest - new_largest) + tl.exp(x - new_largest)
        largest = new_largest
        hit += tl.where(token[None, :] == target[:, None], x, 0.0)
    peak = tl.max(largest, axis=1)
    log_total = tl.log(tl.sum(total * tl.exp(largest - peak[:, None]), axis=1))
    # In this order a loss far below the logits keeps its digits.
    loss = tl.where(target == IGNORE, 0.0, peak - tl.sum(hit, axis=1) + log_total)
    tl.store(losses_ptr + row, loss, mask=row < N)
    tl.store(log_sums_ptr + row, peak + log_total, mask=row < N)


@triton.jit(do_not_specialize=["N"])
def _backward_kernel(
    grad_ptr,
    logits_ptr,
    targets_ptr,
    log_sums_ptr,
    grad_logits_ptr,
    N,
    V,
    logits_row,
    ROWS: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    target = tl.load(targets_ptr + row, mask=row < N, other=IGNORE)
    log_sum = tl.load(log_sums_ptr + row, mask=row < N, other=0.0)
    grad = tl.load(grad_ptr + row, mask=row < N, other=0.0)
    grad = tl.where(target == IGNORE, 0.0, grad)
    for start in range(0, V, BLOCK_V):
        token = start + tl.arange(0, BLOCK_V)
        mask = (row < N)[:, None] & (token < V)[None, :]
        x = tl.load(logits_ptr + row[:, None] * logits_row + token[None, :], mask=mask, other=0.0).to(tl.float32)
        probability = tl.exp(x - log_sum[:, None])
        grad_x = grad[:, None] * tl.where(token[None, :] == target[:, None], probability - 1.0, probability)
        tl.store(
            grad_logits_ptr + row[:, None] * V + token[None, :],
            grad_x.to(grad_logits_ptr.dtype.element_ty),
            mask=mask,
        )


def forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`losses` of `kernels.fused.cross_entropy`."""
    rows, vocabulary = logits.shape
    loss, log_sum = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(2))
    logits, tile = _unit_stride(logits), _tile(vocabulary)
    if rows:
        _forward_kernel[triton.cdiv(rows, tile["ROWS"]),](
            logits, targets.contiguous(), loss, log_sum, rows, vocabulary, logits.stride(0), **tile
        )
    return loss, log_sum


def backward(grad: Tensor, logits: Tensor, targets: Tensor, log_sum: Tensor) -> Tensor:
    """`losses_backward` of `kernels.fused.cross_entropy`."""
    rows, vocabulary = logits.shape
    grad_logits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    logits, tile = _unit_stride(logits), _tile(vocabulary)
    if rows:
        _backward_kernel[triton.cdiv(rows, tile["ROWS"]),](
            grad.contiguous(),
            logits,
            targets.contiguous(),
            log_sum,
            grad_logits,
            rows,
            vocabulary,
            logits.stride(0),
            **tile,
        )
    return grad_logits


def _tile(vocabulary: int) -> dict[str, int]:
    block = min(triton.next_power_of_2(vocabulary), MAX_BLOCK_V)
    return {"ROWS": TILE // block, "BLOCK_V": block, "num_warps": WARPS}


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()
