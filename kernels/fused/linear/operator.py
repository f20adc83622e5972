"""A linear layer as PyTorch operators: PyTorch's product forward, a Triton kernel for the gradient of the weight."""

import math

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_sums import UNIT, sum_parts
from mixerlab.kernels.fused.linear.triton_kernels import weight_gradient_kernel

MIN_STEPS = 4  # of a part: with fewer it would write more than half as many bytes as it reads
# (rows of a step, fewest rows and columns of a tile, most of either, stages, warps). In bfloat16 a tile of at least 64
# rows uses warp-group products, and four stages of one program fit in shared memory. Float32 products do not use the
# tensor cores; with a smaller tile their sums stay in registers.
CONFIGS = {torch.bfloat16: (64, (64, 16), 128, 4, 8), torch.float32: (32, (16, 16), 64, 2, 4)}


@operator("linear")
def product(x, weight, bias: Tensor | None):
    """`x` `[groups, N, K]` by `weight` `[groups, M, K]`, plus `bias` `[groups, M]`: `[groups, N, M]`, rounded once."""
    if bias is None:
        return torch.bmm(x, weight.mT)
    y = _empty_product(x, weight, bias)
    for group, rows in enumerate(x):  # the library adds a bias on the chip only to a single product
        torch.addmm(bias[group].to(x.dtype), rows, weight[group].mT, out=y[group])
    return y


@product.register_fake
def _empty_product(x, weight, bias):
    return x.new_empty((*x.shape[:2], weight.shape[1]))


@operator("linear_weight_gradient")
def weight_gradient(grad, x):
    """`[groups, M, K]` from the result's gradient `[groups, N, M]` and `x` `[groups, N, K]`.

    By PyTorch's product if one part is best.
    """
    (groups, rows, outputs), inputs = grad.shape, x.shape[2]
    step, (least_m, least_k), most, stages, warps = CONFIGS[x.dtype]
    block_m = min(max(triton.next_power_of_2(outputs), least_m), most)
    block_k = min(max(triton.next_power_of_2(inputs), least_k), most)
    tiles = triton.cdiv(outputs, block_m) * triton.cdiv(inputs, block_k)
    steps = part_steps(triton.cdiv(rows, step), groups * tiles, processors(x.device))
    if steps is None:
        return torch.bmm(grad.mT, x)
    parts = triton.cdiv(rows, steps * step)
    grad, x = unit_stride(grad), unit_stride(x)
    unit_m = math.gcd(UNIT, outputs, *grad.stride()[:2])
    unit_k = math.gcd(UNIT, inputs, *x.stride()[:2])
    sums = x.new_empty((groups, parts, outputs, inputs), dtype=torch.float32)
    weight_gradient_kernel[tiles, parts, groups](
        *(grad, x, sums, rows, steps * step, outputs // unit_m, inputs // unit_k),
        *(stride // unit_m for stride in grad.stride()[:2]),
        *(stride // unit_k for stride in x.stride()[:2]),
        UNIT_M=unit_m,
        UNIT_K=unit_k,
        BLOCK_M=block_m,
        BLOCK_K=block_k,
        BLOCK_N=step,
        num_stages=stages,
        num_warps=warps,
    )
    return sum_parts(sums, x.dtype)


@weight_gradient.register_fake
def _(grad, x):
    return x.new_empty((x.shape[0], grad.shape[2], x.shape[2]))


def part_steps(steps: int, tiles: int, programs: int) -> int | None:
    """Steps of a part, if each of `tiles` sums `steps` and at most `programs` run; None if one part is best."""
    parts = min(programs // tiles, steps // MIN_STEPS)
    return triton.cdiv(steps, parts) if parts > 1 else None


def _gradients(ctx, grad):
    x, weight, bias = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad
    return (
        torch.bmm(grad, weight) if of_x else None,
        weight_gradient(grad, x) if of_weight else None,
        grad.sum(dim=1, dtype=bias.dtype) if of_bias else None,
    )


register_gradient(product, _gradients)
