"""`population_step` in Triton: each element is read and written once."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _step_kernel(
    parameters,
    gradient,
    polar,
    first_moment,
    second_moment,
    lr,
    column_scale,
    decay,
    clip,
    active,
    bias_correction,
    size,
    matrices,
    decayed,
    beta1,
    beta2,
    eps,
    BLOCK: tl.constexpr,
):
    replica = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = replica * size + column
    inside = column < size
    is_matrix = column < matrices
    by_adam = inside & (column >= matrices)
    rate = tl.load(lr + replica)

    grad = tl.load(gradient + place, mask=by_adam, other=0.0) * tl.load(clip + replica)
    first = tl.load(first_moment + place, mask=by_adam, other=0.0)
    second = tl.load(second_moment + place, mask=by_adam, other=0.0)
    first += (1 - beta1) * (grad - first)
    second += (1 - beta2) * (grad * grad - second)
    tl.store(first_moment + place, first, mask=by_adam)
    tl.store(second_moment + place, second, mask=by_adam)
    unbiased = second / tl.load(bias_correction + 1)
    adam = first / tl.load(bias_correction) / (tl.sqrt(unbiased) + eps)
    direction = tl.where(is_matrix, tl.load(polar + replica * matrices + column, mask=is_matrix, other=0.0), adam)

    value = tl.load(parameters + place, mask=inside, other=0.0)
    scale = tl.load(column_scale + column, mask=inside, other=0.0)
    shrinkage = tl.where(column < decayed, tl.load(decay), 0.0)
    moved = value - rate * (scale * direction + shrinkage * value)
    tl.store(parameters + place, tl.where(tl.load(active + replica) > 0, moved, value), mask=inside)


def population_step_triton(
    parameters: Tensor,
    gradient: Tensor,
    polar: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    lr: Tensor,
    column_scale: Tensor,
    decay: Tensor,
    decayed: int,
    clip: Tensor,
    active: Tensor,
    betas: tuple[float, float],
    bias_correction: Tensor,
    eps: float,
) -> None:
    replicas, size = parameters.shape
    _step_kernel[(triton.cdiv(size, BLOCK), replicas)](
        parameters,
        gradient,
        polar,
        first_moment,
        second_moment,
        lr,
        column_scale,
        decay,
        clip,
        active,
        bias_correction,
        size,
        polar.shape[1],
        decayed,
        *betas,
        eps,
        BLOCK=BLOCK,
        num_warps=4,
    )
