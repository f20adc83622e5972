"""Newton-Schulz in Triton: one program owns one matrix and runs all its iterations on chip.

With X `[short, long]` (a tall matrix is transposed as it is read) a step is
    G = X X^T,  P = b G + c G G,  X <- a X + P X.
X is zero-padded to blocks of `[SHORT, BLOCK]`, which stay in registers from step to step; G sums over them. Their
number is a constant of the code, so the kernel holds one loop for each number that occurs. X is divided by its norm
within the first step, after the products: it is rounded once, and read once. Matrices run side by side on the GPU's
processors, so the longest one sets the time and padding the small ones costs none.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.newton_schulz.reference import QUINTIC

BLOCK = 128  # columns of X in one product


@triton.jit
def _read(matrix, block, short, long, tall, SHORT: tl.constexpr, BLOCK: tl.constexpr):
    """Block of X `[SHORT, BLOCK]`, zero outside the matrix. Neighbouring threads read neighbouring memory."""
    i = tl.arange(0, SHORT)
    j = block * BLOCK + tl.arange(0, BLOCK)
    if tall:
        inside_tall = (j[:, None] < long) & (i[None, :] < short)
        x = tl.trans(tl.load(matrix + j[:, None] * short + i[None, :], mask=inside_tall, other=0.0))
    else:
        inside = (i[:, None] < short) & (j[None, :] < long)
        x = tl.load(matrix + i[:, None] * long + j[None, :], mask=inside, other=0.0)
    return x


@triton.jit
def _write(matrix, x, block, short, long, tall, SHORT: tl.constexpr, BLOCK: tl.constexpr):
    """The inverse of `_read`."""
    i = tl.arange(0, SHORT)
    j = block * BLOCK + tl.arange(0, BLOCK)
    if tall:
        inside_tall = (j[:, None] < long) & (i[None, :] < short)
        tl.store(matrix + j[:, None] * short + i[None, :], tl.trans(x), mask=inside_tall)
    else:
        inside = (i[:, None] < short) & (j[None, :] < long)
        tl.store(matrix + i[:, None] * long + j[None, :], x, mask=inside)


@triton.jit
def _pack(x):
    """Neighbouring columns of a bfloat16 `x` in one integer: a value carried through a loop takes a register each."""
    if x.dtype != tl.bfloat16:
        return x
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    even, odd = even.to(tl.uint16, bitcast=True), odd.to(tl.uint16, bitcast=True)
    return even.to(tl.uint32) | (odd.to(tl.uint32) << 16)


@triton.jit
def _unpack(packed):
    """The inverse of `_pack`."""
    if packed.dtype != tl.uint32:
        return packed
    even, odd = (packed & 0xFFFF).to(tl.uint16), (packed >> 16).to(tl.uint16)
    pairs = tl.join(even.to(tl.bfloat16, bitcast=True), odd.to(tl.bfloat16, bitcast=True))
    return tl.reshape(pairs, (packed.shape[0], 2 * packed.shape[1]))


@triton.jit
def _iterate(
    blocks_of_x,
    scale,
    steps,
    A: tl.constexpr,
    B: tl.constexpr,
    C: tl.constexpr,
    SHORT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Runs all steps on the X whose blocks, times `scale`, `blocks_of_x` points to, and writes it back."""
    dtype = blocks_of_x.dtype.element_ty
    xs = ()
    for block in tl.static_range(BLOCKS):
        xs = xs + (_pack(tl.load(blocks_of_x + block * (SHORT * BLOCK))),)  # noqa: RUF005 (Triton has no unpacking)
    for _ in range(steps):
        gram = tl.zeros((SHORT, SHORT), tl.float32)
        for block in tl.static_range(BLOCKS):
            x = _unpack(xs[block])
            gram = tl.dot(x, tl.trans(x), gram, input_precision="ieee")
        # Both terms from the rounded Gram matrix: then they are a polynomial of one matrix, near the true one,
        # and half the error remains.
        low = (gram * (scale * scale)).to(dtype)
        polynomial = (B * low.to(tl.float32) + C * tl.dot(low, low, input_precision="ieee")).to(dtype)
        moved = ()
        for block in tl.static_range(BLOCKS):
            x = _unpack(xs[block])
            x = scale * tl.dot(polynomial, x, A * x.to(tl.float32), input_precision="ieee")
            moved = moved + (_pack(x.to(dtype)),)  # noqa: RUF005
        xs = moved
        scale = 1.0
    for block in tl.static_range(BLOCKS):
        tl.store(blocks_of_x + block * (SHORT * BLOCK), _unpack(xs[block]))


# Widths differ between tasks, with the vocabulary: one compiled kernel serves all.
@triton.jit(do_not_specialize=["flat_stride", "polar_stride", "scratch_blocks", "steps"])
def _polar_kernel(
    flat,
    flat_stride,
    polar,
    polar_stride,
    scratch,
    scratch_blocks,
    table,
    steps,
    eps,
    A: tl.constexpr,
    B: tl.constexpr,
    C: tl.constexpr,
    SHORT: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNTS: tl.constexpr,
):
    replica = tl.program_id(0).to(tl.int64)
    entry = table + 4 * tl.program_id(1)
    start, rows, columns, first_block = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    short, long, tall = tl.minimum(rows, columns), tl.maximum(rows, columns), rows > columns
    blocks = tl.cdiv(long, BLOCK)
    source = flat + replica * flat_stride + start
    target = polar + replica * polar_stride + start
    in_block = tl.arange(0, SHORT)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    blocks_of_x = scratch + (replica * scratch_blocks + first_block) * (SHORT * BLOCK) + in_block
    dtype = scratch.dtype.element_ty

    squares = tl.zeros((SHORT,), tl.float32)
    for block in range(blocks):
        x = _read(source, block, short, long, tall, SHORT, BLOCK)
        squares += tl.sum(x * x, axis=1)
        tl.store(blocks_of_x + block * (SHORT * BLOCK), x.to(dtype))
    scale = 1.0 / tl.maximum(tl.sqrt(tl.sum(squares, axis=0)), eps)
    tl.debug_barrier()  # other threads wrote what this one reads
    for i in tl.static_range(len(COUNTS)):
        if blocks == COUNTS[i]:
            _iterate(blocks_of_x, scale, steps, A, B, C, SHORT, BLOCK, COUNTS[i])
    tl.debug_barrier()
    for block in range(blocks):
        x = tl.load(blocks_of_x + block * (SHORT * BLOCK)).to(tl.float32)
        _write(target, x, block, short, long, tall, SHORT, BLOCK)


@lru_cache
def _table(shapes: tuple[tuple[int, int], ...], device: torch.device) -> tuple[Tensor, int]:
    """Each matrix's start, rows, columns and first block of scratch, and the number of blocks in all.

    The longest stand first: where matrices wait for a processor, the short ones do.
    """
    entries, start, blocks = [], 0, 0
    for rows, columns in shapes:
        entries.append((start, rows, columns, blocks))
        start += rows * columns
        blocks += triton.cdiv(max(rows, columns), BLOCK)
    entries.sort(key=lambda entry: -max(entry[1:3]))
    return torch.tensor(entries, dtype=torch.int32, device=device), blocks


def polar_factors(
    flat: Tensor, shapes: tuple[tuple[int, int], ...], steps: int, dtype: torch.dtype, eps: float
) -> Tensor:
    """`kernels.newton_schulz.orthogonalise`, with its arguments checked."""
    replicas = len(flat)
    table, blocks = _table(shapes, flat.device)
    counts = tuple(sorted({triton.cdiv(max(shape), BLOCK) for shape in shapes}))
    short = max(16, triton.next_power_of_2(max(min(shape) for shape in shapes)))
    polar = torch.empty(flat.shape, device=flat.device)
    scratch = torch.empty(replicas * blocks * short * BLOCK, dtype=dtype, device=flat.device)
    _polar_kernel[(replicas, len(shapes))](
        flat,
        flat.stride(0),
        polar,
        polar.stride(0),
        scratch,
        blocks,
        table,
        steps,
        eps,
        *QUINTIC,
        SHORT=short,
        BLOCK=BLOCK,
        COUNTS=counts,
        num_warps=8 if short == 128 else 4,
    )
    return polar
