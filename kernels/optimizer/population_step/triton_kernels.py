"""`update_moments` and `update_parameters` in Triton: each element is read and written once.

Every program that needs a replica's norm adds up the parts of that norm by itself. There are at most `NORM_PROGRAMS`,
and one more launch would take longer.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 4
NORM_BLOCK, NORM_WARPS = 4096, 8
NORM_PROGRAMS = 512  # most for a replica: with more than 2 million columns each takes several blocks


@triton.jit
def _squares_kernel(gradient, squares, size, rounds, BLOCK: tl.constexpr):
    replica = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(gradient + replica * size + column, mask=column < size, other=0.0)
    total = grad * grad
    for _ in range(1, rounds):  # Triton compiles an argument of 1 as a constant: one round has no loop
        column += tl.num_programs(0) * BLOCK
        grad = tl.load(gradient + replica * size + column, mask=column < size, other=0.0)
        total += grad * grad
    tl.store(squares + replica * tl.num_programs(0) + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit(do_not_specialize=["parts"])
def _moments_kernel(
    gradient, squares, first_moment, second_moment,
    ahead,  # None: no Nesterov momentum
    step, active, steps_taken, size, parts, matrices, momentum, beta1, beta2, max_norm,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    replica = tl.program_id(1).to(tl.int64)
    part = tl.arange(0, PARTS)
    norm = tl.sqrt(tl.sum(tl.load(squares + replica * parts + part, mask=part < parts, other=0.0), axis=0))
    if tl.program_id(0) == 0:
        alive = tl.where(norm < float("inf"), tl.load(active + replica), 0.0)  # NaN is not below infinity either
        tl.store(active + replica, alive)
        tl.store(steps_taken + replica, tl.load(steps_taken + replica) + alive)
        if tl.program_id(1) == 0:
            tl.store(step, tl.load(step) + 1)

    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = replica * size + column
    inside, is_matrix = column < size, column < matrices
    by_adam = inside & (column >= matrices)
    grad = tl.load(gradient + place, mask=inside, other=0.0) * tl.minimum(max_norm / (norm + 1e-6), 1.0)
    first = tl.load(first_moment + place, mask=inside, other=0.0)
    second = tl.load(second_moment + place, mask=by_adam, other=0.0)
    first += (1 - tl.where(is_matrix, momentum, beta1)) * (grad - first)
    second += (1 - beta2) * (grad * grad - second)
    tl.store(first_moment + place, first, mask=inside)
    tl.store(second_moment + place, second, mask=by_adam)
    if ahead is not None:
        tl.store(ahead + replica * matrices + column, grad + momentum * (first - grad), mask=is_matrix)


@triton.jit(do_not_specialize=["steps"])
def _parameters_kernel(
    parameters, polar, first_moment, second_moment, step, active, lr, column_scale, column_decay, schedule, size,
    scales,  # from one replica's row of `column_scale` to the next; 0: all have one
    steps, matrices, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    replica = tl.program_id(1).to(tl.int64)
    now = schedule + tl.minimum(tl.load(step).to(tl.int32), steps) - 1
    rate = tl.load(lr + replica) * tl.load(now)
    decay, correction1, correction2 = tl.load(now + steps), tl.load(now + 2 * steps), tl.load(now + 3 * steps)

    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = replica * size + column
    inside, is_matrix = column < size, column < matrices
    by_adam = inside & (column >= matrices)
    first = tl.load(first_moment + place, mask=by_adam, other=0.0)
    second = tl.load(second_moment + place, mask=by_adam, other=0.0)
    adam = first / correction1 / (tl.sqrt(second / correction2) + eps)
    direction = tl.where(is_matrix, tl.load(polar + replica * matrices + column, mask=is_matrix, other=0.0), adam)

    value = tl.load(parameters + place, mask=inside, other=0.0)
    scale = tl.load(column_scale + replica * scales + column, mask=inside, other=0.0)
    shrinkage = decay * tl.load(column_decay + column, mask=inside, other=0.0)
    moved = value - rate * (scale * direction + shrinkage * value)
    tl.store(parameters + place, tl.where(tl.load(active + replica) > 0, moved, value), mask=inside)


def update_moments(
    gradient, first_moment, second_moment, step, active, steps_taken, matrices, momentum, nesterov, betas, max_norm
) -> Tensor:
    replicas, size = gradient.shape
    parts = min(triton.cdiv(size, NORM_BLOCK), NORM_PROGRAMS)
    rounds = triton.cdiv(size, NORM_BLOCK * NORM_PROGRAMS)
    squares = torch.empty((replicas, parts), device=gradient.device)
    _squares_kernel[parts, replicas](gradient, squares, size, rounds, BLOCK=NORM_BLOCK, num_warps=NORM_WARPS)
    ahead = torch.empty((replicas, matrices), device=gradient.device) if nesterov else None
    _moments_kernel[triton.cdiv(size, BLOCK), replicas](
        *(gradient, squares, first_moment, second_moment, ahead, step, active, steps_taken),
        *(size, parts, matrices, momentum, *betas, max_norm),
        PARTS=triton.next_power_of_2(parts),
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return first_moment[:, :matrices] if ahead is None else ahead


def update_parameters(
    parameters, polar, first_moment, second_moment, step, active, lr, column_scale, column_decay, schedule, eps
) -> None:
    replicas, size = parameters.shape
    _parameters_kernel[triton.cdiv(size, BLOCK), replicas](
        *(parameters, polar, first_moment, second_moment),
        *(step, active, lr, column_scale, column_decay, schedule),
        *(size, size if column_scale.ndim == 2 else 0, schedule.shape[1], polar.shape[1], eps),
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
