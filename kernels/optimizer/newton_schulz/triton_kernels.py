"""Newton-Schulz in Triton: one launch reads all matrices, and one launch for each step updates all of their blocks.

With X `[short, long]` (a tall matrix is transposed when it is read) a step is

    G = X X^T,  P = b G + c G G,  X <- a X + P X.

X is padded with zeros to blocks of `[SHORT, BLOCK]` in scratch memory, which stays in the L2 cache. A program takes one
block. It sums G over all blocks of its matrix by itself: G is small, and so programs of a launch need nothing from each
other. X is divided by its norm in the first step, after the products, so that it is rounded only once.

Tried on an H200 with 14 matrices of 128 x 128 and 128 x 352: one program for each matrix with X in scratch memory, 80
us; with X in registers, 66 us, but 176 us instead of 103 if a matrix of four blocks spills. The whole optimizer step of
one replica takes 57 us as it is, and 77 us with X in registers.
"""

import triton
import triton.language as tl


@triton.jit
def _read(matrix, block, short, long, tall, SHORT: tl.constexpr, BLOCK: tl.constexpr):
    """A block of X, `[SHORT, BLOCK]`, zero outside the matrix. Neighbouring threads read neighbouring memory."""
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
def _entry(table, block):
    """What `_table` says of a block."""
    entry = table + 5 * block
    return tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3), tl.load(entry + 4)


# One build for all widths, which differ between tasks with the vocabulary.
@triton.jit(do_not_specialize=["flat_stride", "blocks_in_all"])
def polar_read_kernel(
    flat, flat_stride, blocks_of_x, squares, table, blocks_in_all, SHORT: tl.constexpr, BLOCK: tl.constexpr
):
    """Copies every block of X, and writes the sum of its squares."""
    replica = tl.program_id(0).to(tl.int64)
    start, rows, columns, first, block = _entry(table, tl.program_id(1))
    short, long = tl.minimum(rows, columns), tl.maximum(rows, columns)
    x = _read(flat + replica * flat_stride + start, block, short, long, rows > columns, SHORT, BLOCK)
    at = replica * blocks_in_all + first + block
    tl.store(squares + at, tl.sum(tl.sum(x * x, axis=1), axis=0))
    inside = tl.arange(0, SHORT)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(blocks_of_x + at * (SHORT * BLOCK) + inside, x)


@triton.jit(do_not_specialize=["polar_stride", "blocks_in_all", "is_first", "is_last"])
def polar_step_kernel(
    blocks_of_x,
    next_blocks,  # X after the step; not written in the last one
    squares,
    polar,  # written in the last step
    polar_stride, table, blocks_in_all, is_first, is_last, eps,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, SHORT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    replica = tl.program_id(0).to(tl.int64)
    start, rows, columns, first, block = _entry(table, tl.program_id(1))
    short, long, tall = tl.minimum(rows, columns), tl.maximum(rows, columns), rows > columns
    blocks = tl.cdiv(long, BLOCK)
    at = replica * blocks_in_all + first
    inside = tl.arange(0, SHORT)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    source = blocks_of_x + at * (SHORT * BLOCK) + inside
    dtype = blocks_of_x.dtype.element_ty

    gram = tl.zeros((SHORT, SHORT), tl.float32)
    for i in range(blocks):
        x = tl.load(source + i * (SHORT * BLOCK))
        gram = tl.dot(x, tl.trans(x), gram, input_precision="ieee")
    scale = 1.0
    if is_first:
        total = 0.0
        for i in range(blocks):
            total += tl.load(squares + at + i)
        scale = 1.0 / tl.maximum(tl.sqrt(total), eps)
    # Both terms use the rounded Gram matrix. Then they are a polynomial of one matrix close to the true one, which
    # halves the error.
    low = (gram * (scale * scale)).to(dtype)
    polynomial = (B * low.to(tl.float32) + C * tl.dot(low, low, input_precision="ieee")).to(dtype)
    x = tl.load(source + block * (SHORT * BLOCK))
    x = (scale * tl.dot(polynomial, x, A * x.to(tl.float32), input_precision="ieee")).to(dtype)
    if is_last:
        target = polar + replica * polar_stride + start
        _write(target, x.to(tl.float32), block, short, long, tall, SHORT, BLOCK)
    else:
        tl.store(next_blocks + (at + block) * (SHORT * BLOCK) + inside, x)
