"""Triton kernels of the cross-entropy. A program takes rows of a group and loops over blocks of the vocabulary."""

import triton
import triton.language as tl

from mixerlab.kernels.ignore_index import IGNORE_INDEX

IGNORE = tl.constexpr(IGNORE_INDEX)
NO_LOGIT = tl.constexpr(-1e30)  # past the vocabulary; finite, so that differences are not NaN


@triton.jit(do_not_specialize=["N"])
def cross_entropy_forward_kernel(
    logits_ptr, targets_ptr, sums_ptr, counts_ptr, lse_ptr,
    N, V, logits_row,
    ROWS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    in_group = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = in_group < N
    row = group * N + in_group
    target = tl.load(targets_ptr + row, mask=inside, other=IGNORE)
    # For each place in a block, over all blocks: the largest logit, the sum of exponentials relative to it, and the
    # target's logit.
    largest = tl.full((ROWS, BLOCK_V), NO_LOGIT, dtype=tl.float32)
    total = tl.zeros((ROWS, BLOCK_V), dtype=tl.float32)
    hit = tl.zeros((ROWS, BLOCK_V), dtype=tl.float32)
    for start in range(0, V, BLOCK_V):
        token = start + tl.arange(0, BLOCK_V)
        mask = inside[:, None] & (token < V)[None, :]
        x = tl.load(logits_ptr + row[:, None] * logits_row + token[None, :], mask=mask, other=NO_LOGIT)
        x = x.to(tl.float32)
        new_largest = tl.maximum(largest, x)
        total = total * tl.exp(largest - new_largest) + tl.exp(x - new_largest)
        largest = new_largest
        hit += tl.where(token[None, :] == target[:, None], x, 0.0)
    row_max = tl.max(largest, axis=1)
    log_total = tl.log(tl.sum(total * tl.exp(largest - row_max[:, None]), axis=1))
    # In this order a loss much smaller than the logits keeps its digits.
    loss = tl.where(target == IGNORE, 0.0, row_max - tl.sum(hit, axis=1) + log_total)
    tl.store(lse_ptr + row, row_max + log_total, mask=inside)
    part = group * tl.num_programs(0) + tl.program_id(0)
    tl.store(sums_ptr + part, tl.sum(loss, axis=0))
    tl.store(counts_ptr + part, tl.sum((target != IGNORE).to(tl.float32), axis=0))


@triton.jit(do_not_specialize=["parts"])
def group_means_kernel(sums_ptr, counts_ptr, means_ptr, group_counts_ptr, parts, BLOCK: tl.constexpr):
    group = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    count = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, parts, BLOCK):
        part = start + tl.arange(0, BLOCK)
        total += tl.load(sums_ptr + group * parts + part, mask=part < parts, other=0.0)
        count += tl.load(counts_ptr + group * parts + part, mask=part < parts, other=0.0)
    positions = tl.sum(count, axis=0)
    tl.store(means_ptr + group, tl.sum(total, axis=0) / tl.maximum(positions, 1.0))
    tl.store(group_counts_ptr + group, positions)


@triton.jit(do_not_specialize=["N"])
def cross_entropy_backward_kernel(
    grad_ptr, logits_ptr, targets_ptr, group_counts_ptr, lse_ptr, grad_logits_ptr,
    N, V, logits_row,
    ROWS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1).to(tl.int64)
    in_group = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = in_group < N
    row = group * N + in_group
    target = tl.load(targets_ptr + row, mask=inside, other=IGNORE)
    lse = tl.load(lse_ptr + row, mask=inside, other=0.0)
    grad = tl.load(grad_ptr + group) / tl.maximum(tl.load(group_counts_ptr + group), 1.0)
    grad = tl.where(target == IGNORE, 0.0, grad)
    for start in range(0, V, BLOCK_V):
        token = start + tl.arange(0, BLOCK_V)
        mask = inside[:, None] & (token < V)[None, :]
        x = tl.load(logits_ptr + row[:, None] * logits_row + token[None, :], mask=mask, other=0.0).to(tl.float32)
        probability = tl.exp(x - lse[:, None])
        grad_x = grad[:, None] * tl.where(token[None, :] == target[:, None], probability - 1.0, probability)
        tl.store(grad_logits_ptr + row[:, None] * V + token[None, :], grad_x, mask=mask)
