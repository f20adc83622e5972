"""The Triton embedding as PyTorch operators."""

import torch
import triton

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.fused.embedding.triton_kernels import embedding_backward_kernel, embedding_forward_kernel

# The kernel multiplies by one-hot rows, which takes time in proportion to the vocabulary. For larger ones PyTorch sorts
# the tokens.
MAX_VOCABULARY = 256
TILE, WARPS = 2048, 4
BLOCK_N, MAX_BLOCK_D = 64, 128
# By the bytes of an element. Each block of tokens reads the rows again, and yet in float32 two small blocks take less
# time than a large one: 3 x 131,072 rows took 66 us with a block of 32 tokens, and 303 us with one of 64.
MAX_BLOCK_V = {4: 32, 2: 64}
BACKWARD_PROGRAMS = 4  # for each multiprocessor, of all groups together


@operator("embedding")
def look_up(tokens, weight):
    """`embedding` of `tokens` `[groups, N]` in `weight` `[groups, V, D]`: `[groups, N, D]`."""
    groups, rows = tokens.shape
    width = weight.shape[2]
    weight = unit_stride(weight)
    y = _rows(tokens, weight)
    block = min(triton.next_power_of_2(width), MAX_BLOCK_D)
    tile = TILE // block
    if y.numel():
        embedding_forward_kernel[triton.cdiv(rows, tile), groups, triton.cdiv(width, block)](
            *(tokens.contiguous(), weight, y, rows, *weight.stride()[:2]),
            D=width,
            BLOCK_D=block,
            ROWS=tile,
            num_warps=WARPS,
        )
    return y


@look_up.register_fake
def _rows(tokens, weight):
    return weight.new_empty((*tokens.shape, weight.shape[2]))


@operator("embedding_backward", like="weight")
def look_up_backward(grad, tokens, weight):
    """Gradient of `weight`, of which only the shape and dtype are used."""
    (groups, rows, width), vocabulary = grad.shape, weight.shape[1]
    if vocabulary > MAX_VOCABULARY:
        numbers = tokens + vocabulary * torch.arange(groups, device=tokens.device)[:, None]
        wide = grad.float().flatten(0, 1)
        sums = torch.ops.aten.embedding_dense_backward(wide, numbers.flatten(), groups * vocabulary, -1, False)
        return sums.view(weight.shape).to(weight.dtype)
    block_v = min(max(triton.next_power_of_2(vocabulary), 16), MAX_BLOCK_V[grad.element_size()])
    block_d = min(max(triton.next_power_of_2(width), 16), MAX_BLOCK_D)
    blocks = triton.cdiv(vocabulary, block_v) * triton.cdiv(width, block_d)
    steps = triton.cdiv(rows, BLOCK_N)
    part_steps = triton.cdiv(steps, max(1, BACKWARD_PROGRAMS * processors(grad.device) // (groups * blocks)))
    parts = triton.cdiv(steps, part_steps) if steps else 0
    sums = grad.new_empty((groups, parts, vocabulary, width), dtype=torch.float32)
    if sums.numel():
        embedding_backward_kernel[parts, groups, blocks](
            *(grad.contiguous(), tokens.contiguous(), sums, rows, vocabulary, part_steps * BLOCK_N),
            D=width,
            BLOCK_D=block_d,
            BLOCK_V=block_v,
            BLOCK_N=BLOCK_N,
            num_warps=WARPS,
        )
    return sum_parts(sums, weight.dtype)


register_gradient(look_up, lambda ctx, grad: (None, look_up_backward(grad, *ctx.saved_tensors)))
