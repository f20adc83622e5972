"""The projection to queries, keys, values and probes, normed and rotated before they leave the registers.

Each multiprocessor runs one program, which keeps the weights in shared memory and loops over rows.
"""

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mixerlab.kernels.common.addressing import whole_rows
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.triton_attention import dot
from mixerlab.kernels.parallax.triton_rotation import rotate_heads
from mixerlab.kernels.parallax.triton_tiles import for_copy_engine, strides_of

MAX_WIDTH = 128  # of x, and of all heads together
SHARED_MEMORY = 200 * 1024  # bytes for the weights, three tiles of x and one of results, at this width
# (rows of a tile, stages, warps) by the bytes of an element. Full-precision products do not use the tensor cores.
CONFIGS = {2: (64, 3, 4), 4: (32, 1, 4)}


@triton.jit
def _normed(x, gain, eps, ROWS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr):
    """RMSNorm of each head of `[ROWS, HEADS D]`."""
    x = tl.reshape(x, (ROWS, HEADS, D)).to(tl.float32)
    gain = tl.load(gain + tl.arange(0, D)).to(tl.float32)
    x *= tl.rsqrt(tl.sum(x * x, 2) / D + eps)[:, :, None] * gain[None, None, :]
    return tl.reshape(x, (ROWS, HEADS * D))


@triton.jit(do_not_specialize=["gain_group"], do_not_specialize_on_alignment=["gains"])
def projection_kernel(
    x_desc, weight_desc, frequency, gains, gain_group, eps, packed_desc, rows, seq_len,
    HEADS: tl.constexpr, D: tl.constexpr, ROTATE_RHO: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1)
    WIDTH: tl.constexpr = HEADS * D
    weights: tl.tuple = ()
    for i in tl.static_range(4):  # of q, k, v and ρ
        weights += (weight_desc.load([group, i * WIDTH, 0]).reshape(WIDTH, BLOCK_K),)
    EXACT: tl.constexpr = x_desc.dtype == tl.float32
    for start in tl.range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS, num_stages=STAGES):
        x = x_desc.load([group, start, 0]).reshape(ROWS, BLOCK_K)
        position = (start + tl.arange(0, ROWS)) % seq_len
        for i in tl.static_range(4):
            y = dot(x, weights[i].T)
            if gains is not None and i != 2:
                place = i - i // 3  # among q, k and ρ
                y = y.to(x.dtype)  # as the backward reads it
                packed_desc.store([group, start, (4 + place) * WIDTH], y.reshape(1, ROWS, WIDTH))
                y = _normed(y, gains + group * gain_group + place * D, eps, ROWS, HEADS, D)
            if i < 2 or (i == 3 and ROTATE_RHO):
                y = rotate_heads(y, frequency, group, position, ROWS, HEADS, D, EXACT)
            packed_desc.store([group, start, i * WIDTH], y.to(x.dtype).reshape(1, ROWS, WIDTH))


def packed_width(weight: Tensor, gains: Tensor | None) -> int:
    """Columns of what `run_projection` gives."""
    return weight.shape[1] if gains is None else weight.shape[1] // 4 * 7


def run_projection(
    x: Tensor,
    weight: Tensor,
    inverse_frequency: Tensor,
    gains: Tensor | None,
    eps: float,
    seq_len: int,
    heads: int,
    rotate_rho: bool,
) -> Tensor:
    """`x` `[groups, N, K]` times `weight` `[groups, 4 heads D, K]`: q, k, v and rho, with q, k (and rho) rotated.

    With `gains` `[groups, 3, D]` q, k and rho are normed before, and behind the four are q, k and rho without norm and
    rotation, for the backward.
    """
    groups, rows, width = x.shape
    columns = packed_width(weight, gains)
    head_dim = weight.shape[1] // (4 * heads)
    gains = gains if gains is None else whole_rows(gains)
    packed = x.new_empty(groups, rows, columns)
    tile, stages, warps = CONFIGS[x.element_size()]
    block_k = max(16, triton.next_power_of_2(width))
    programs = min(triton.cdiv(rows, tile), max(1, processors(x.device) // groups))
    projection_kernel[programs, groups](
        _descriptor(for_copy_engine(x), tile, block_k),
        _descriptor(for_copy_engine(weight), heads * head_dim, block_k),
        inverse_frequency.contiguous(),
        *(gains, 0 if gains is None else gains.stride(0), eps),
        _descriptor(packed, tile, heads * head_dim),
        rows,
        seq_len,
        HEADS=heads,
        D=head_dim,
        ROTATE_RHO=rotate_rho,
        ROWS=tile,
        BLOCK_K=block_k,
        STAGES=stages,
        num_warps=warps,
    )
    return packed


def _descriptor(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tiles of `[groups, N, K]`, addressed as (group, row, column)."""
    return TensorDescriptor(x, list(x.shape), strides_of(x), [1, rows, columns])
