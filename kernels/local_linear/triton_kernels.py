"""Conjugate gradients for local linear attention in Triton: one program for some queries of a sequence and head.

A program holds the vectors of its queries on the chip, and walks over the keys once in each step.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.triton_elementwise import TINY
from mixerlab.kernels.local_linear.reference import Systems

QUERIES, KEYS = 32, 64  # of a tile; more queries would not fit in registers


@triton.jit(do_not_specialize=["C", "S", "HIDDEN"])
def solve_kernel(
    keys_ptr, weights_ptr, ridge_ptr, means_ptr, right_ptr, solutions_ptr,
    C,  # queries
    S,  # keys
    HIDDEN,  # keys behind the first query
    ITERATIONS: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The steps of `reference.conjugate_gradients`; `ITERATIONS` of them, so that no row depends on another."""
    first = tl.program_id(0) * QUERIES
    pair = tl.program_id(1).to(tl.int64)  # sequence and head
    rows, columns = first + tl.arange(0, QUERIES), tl.arange(0, D)
    at = pair * C + rows
    inside = rows < C
    tile = at[:, None] * D + columns[None, :]
    right = tl.load(right_ptr + tile, mask=inside[:, None], other=0.0)
    ridge = tl.load(ridge_ptr + at, mask=inside, other=1.0)
    scale = tl.maximum(tl.max(tl.abs(right), 1), TINY)
    residual = right / scale[:, None]
    direction = residual
    solution = tl.zeros_like(residual)
    norm = tl.sum(residual * residual, 1)
    longest = 1.0 / tl.maximum(ridge, TINY)
    seen = tl.minimum(first + QUERIES + HIDDEN, S)
    for _ in range(ITERATIONS):
        means = tl.load(means_ptr + tile, mask=inside[:, None], other=0.0)
        centre = tl.sum(direction * means, 1)
        image = ridge[:, None] * direction
        for start in range(0, seen, KEYS):
            positions = start + tl.arange(0, KEYS)
            there = positions < S
            keys = tl.load(
                keys_ptr + (pair * S + positions)[:, None] * D + columns[None, :], mask=there[:, None], other=0.0
            )
            weights = tl.load(
                weights_ptr + at[:, None] * S + positions[None, :], mask=inside[:, None] & there[None, :], other=0.0
            )
            off = tl.dot(direction, tl.trans(keys), input_precision="tf32x3") - centre[:, None]
            image = tl.dot(weights * off, keys, image, input_precision="tf32x3")
        step = tl.minimum(norm / tl.maximum(tl.sum(direction * image, 1), TINY), longest)
        solution += step[:, None] * direction
        residual -= step[:, None] * image
        last = norm
        norm = tl.sum(residual * residual, 1)
        direction = residual + (norm / tl.maximum(last, TINY))[:, None] * direction
    tl.store(solutions_ptr + tile, scale[:, None] * solution, mask=inside[:, None])


def conjugate_gradients(systems: Systems, right: Tensor, iterations: int) -> Tensor:
    """Solves each system from zero, as `reference.conjugate_gradients` does, in one launch.

    `right` is `[B, H, C, D]`, float32.
    """
    batch, heads, queries, head_dim = right.shape
    keys = systems.keys.shape[-2]
    tensors = [x.contiguous() for x in (*systems, systems.weights @ systems.keys, right)]
    solution = torch.empty_like(tensors[-1])
    solve_kernel[(triton.cdiv(queries, QUERIES), batch * heads)](
        *tensors, solution, queries, keys, keys - queries,
        ITERATIONS=iterations, D=head_dim, QUERIES=QUERIES, KEYS=KEYS, num_warps=4, num_stages=2,
    )  # fmt: skip
    return solution
