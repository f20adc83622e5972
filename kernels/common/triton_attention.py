"""What the kernels of softmax attention and of Parallax share: loads and stores of a head, and short sequences."""

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def load_rows(x, strides, batch, head, rows, seq_len, head_dim, BLOCK_D: tl.constexpr):
    """The positions `rows` of one head of x `[B, T, H, D]` as `[rows, BLOCK_D]`; zeros outside the tensor.

    For what a program loads once, before its loop: all such loads are in flight before the first result is used. With
    the tensor copy engine each would wait for the one before.
    """
    columns = tl.arange(0, BLOCK_D)
    start = batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[2]
    at = start + rows.to(tl.int64)[:, None] * strides[1] + columns[None, :]
    return tl.load(x + at, mask=(rows < seq_len)[:, None] & (columns < head_dim)[None, :], other=0.0)


@triton.jit
def load_sequence(
    x, strides, batch, head, seq_len, head_dim, TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    """All positions of one head, as a tuple of `TILES` tiles `[BLOCK, BLOCK_D]`."""
    tiles: tl.tuple = ()
    for i in tl.static_range(TILES):
        rows = i * BLOCK + tl.arange(0, BLOCK)
        tiles += (load_rows(x, strides, batch, head, rows, seq_len, head_dim, BLOCK_D),)
    return tiles


@triton.jit
def store_rows(x, strides, batch, head, rows, tile, seq_len, head_dim, BLOCK_D: tl.constexpr):
    """Writes `[rows, BLOCK_D]` to the positions `rows` of one head, except what lies outside the tensor."""
    columns = tl.arange(0, BLOCK_D)
    start = batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[2]
    at = start + rows.to(tl.int64)[:, None] * strides[1] + columns[None, :]
    inside = (rows < seq_len)[:, None] & (columns < head_dim)[None, :]
    tl.store(x + at, tile, mask=inside)


@triton.jit
def dot(a, b, total=None):
    """`a @ b`, added to `total` if there is one, in float32. Float32 operands are not rounded to TF32."""
    return tl.dot(a, b, total, input_precision="ieee")


def padded_head_dim(head_dim: int) -> int:
    """The width of a tile: the next power of two, at least the 16 that matrix products need."""
    return max(16, triton.next_power_of_2(head_dim))


def with_strides(*tensors: Tensor) -> list[Tensor | tuple[int, ...]]:
    """Each tensor followed by its strides, as kernels take them."""
    return [argument for x in tensors for argument in (x, x.stride())]


def short_constants(q: Tensor, block: int) -> dict:
    """The compile-time arguments of a kernel that holds a whole sequence, in tiles of `block` positions."""
    return {
        "TILES": triton.cdiv(q.shape[1], block),
        "BLOCK": block,
        "BLOCK_D": padded_head_dim(q.shape[3]),
        "num_warps": block // 16,  # a warp holds 16 rows of weights
    }


@triton.jit
def softmax_weights(q, k, rho, ROW: tl.constexpr, scale_log2, BLOCK: tl.constexpr):
    """The softmax of one tile of queries over a short sequence, before it is divided by its sum.

    Args:
        q, rho: the tiles ROW of queries and of probes, `[BLOCK, BLOCK_D]`; `rho` is None for softmax attention.
        k: all tiles of keys.
        scale_log2: multiplies q·k, together with log2(e).

    Returns:
        Tuples of a `[BLOCK, BLOCK]` for each tile of keys up to ROW: the weights, and t = rho·k (empty without `rho`).
        Then for each query 1 / Σ weights, and the mean of t under the weights (zero without `rho`).
    """
    logits: tl.tuple = ()
    t: tl.tuple = ()
    row_max = tl.full([BLOCK], float("-inf"), tl.float32)
    for j in tl.static_range(ROW + 1):
        x = dot(q, k[j].T)
        if j == ROW:
            # Positions in the sequence, not in the tile: the compiler would keep a mask that tiles share in registers.
            i = ROW * BLOCK + tl.arange(0, BLOCK)
            x = tl.where(i[:, None] >= i[None, :], x, float("-inf"))
        row_max = tl.maximum(row_max, tl.max(x, 1))
        logits += (x,)
        if rho is not None:
            t += (dot(rho, k[j].T),)
    # The product is rounded. All weights of a row share that factor, and it cancels when they are divided by their sum.
    row_max *= scale_log2
    weights: tl.tuple = ()
    row_sum = tl.zeros([BLOCK], tl.float32)
    mean_t = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(ROW + 1):
        x = tl.exp2(logits[j] * scale_log2 - row_max[:, None])
        row_sum += tl.sum(x, 1)
        if rho is not None:
            mean_t += tl.sum(x * t[j], 1)
        weights += (x,)
    inverse_sum = 1 / row_sum
    return weights, t, inverse_sum, mean_t * inverse_sum


@triton.jit
def softmax_and_gradient(weights, inverse_sum, d_o, v, ROW: tl.constexpr, BLOCK: tl.constexpr):
    """For the tile ROW of queries: tiles of p = weights / Σ weights and of a = dO·v, and Σ p a of each query."""
    p: tl.tuple = ()
    a: tl.tuple = ()
    mean_a = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(ROW + 1):
        x = weights[j] * inverse_sum[:, None]
        y = dot(d_o, v[j].T)
        mean_a += tl.sum(x * y, 1)
        p += (x,)
        a += (y,)
    return p, a, mean_a
