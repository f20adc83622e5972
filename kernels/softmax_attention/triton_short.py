"""Causal softmax attention of a short sequence: one launch each way, a program for each head, and nothing saved.

The weights of a query are all in registers, and the backward computes them again. So there is no running mean, no dO·o
to read and no float32 gradient to convert, on which PyTorch's kernels spend most of their time at such lengths. The
kernels share their first steps with those of Parallax (`kernels/common/triton_attention.py`).
"""

# ruff: noqa: RUF005 - Triton compiles `a + (b,)` but not `(*a, b)`.

import triton
import triton.language as tl
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.triton_attention import (
    dot,
    gain_sums,
    load_heads,
    load_sequence,
    sequences_of_group,
    short_constants,
    softmax_and_gradient,
    softmax_weights,
    store_rows,
    turn_gradient,
    turn_heads,
    with_group,
    with_strides,
)
from mixerlab.kernels.common.triton_elementwise import LOG2_E
from mixerlab.kernels.common.triton_sums import sum_parts

BLOCK = 64  # positions of a tile


@triton.jit(do_not_specialize=["sequences", "frequency_group"])
def _short_attention_forward_kernel(
    q, q_strides, k, k_strides, v, v_strides, o, o_strides, frequency, frequency_group, gains,
    heads, seq_len, head_dim, scale_log2, sequences, eps,
    TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    frequency = frequency if frequency is None else frequency + batch // sequences * frequency_group
    gain = gains if gains is None else gains + batch // sequences * 2 * BLOCK_D
    k_gain = gains if gains is None else gain + BLOCK_D
    ks = load_heads(k, k_strides, batch, head, seq_len, head_dim, frequency, k_gain, eps, TILES, BLOCK, BLOCK_D)
    qs = load_heads(q, q_strides, batch, head, seq_len, head_dim, frequency, gain, eps, TILES, BLOCK, BLOCK_D)
    vs = load_sequence(v, v_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    for ROW in tl.static_range(TILES):
        rows = ROW * BLOCK + tl.arange(0, BLOCK)
        weights, _t, inverse_sum, _mean_t = softmax_weights(qs[ROW], ks, None, ROW, scale_log2, BLOCK)
        total = tl.zeros([BLOCK, BLOCK_D], tl.float32)
        for j in tl.static_range(ROW + 1):
            total = dot(weights[j].to(v.dtype.element_ty), vs[j], total)
        store_rows(o, o_strides, batch, head, rows, total * inverse_sum[:, None], seq_len, head_dim, BLOCK_D)


@triton.jit(do_not_specialize=["sequences", "frequency_group"])
def _short_attention_backward_kernel(
    d_o, d_o_strides, q, q_strides, k, k_strides, v, v_strides,
    d_q, d_q_strides, d_k, d_k_strides, d_v, d_v_strides, frequency, frequency_group, gains, sums,
    heads, seq_len, head_dim, scale, scale_log2, sequences, eps,
    TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    half = q.dtype.element_ty
    frequency = frequency if frequency is None else frequency + batch // sequences * frequency_group
    gain = gains if gains is None else gains + batch // sequences * 2 * BLOCK_D
    k_gain = gains if gains is None else gain + BLOCK_D
    if frequency is None:
        ks = load_sequence(k, k_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
        qs = load_sequence(q, q_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    else:  # by way of the caches: turned in registers they would leave too few for the rest
        turn_heads(
            d_k, d_k_strides, k, k_strides, batch, head, seq_len, head_dim, frequency, k_gain, eps,
            TILES, BLOCK, BLOCK_D,
        )  # fmt: skip
        turn_heads(
            d_q, d_q_strides, q, q_strides, batch, head, seq_len, head_dim, frequency, gain, eps,
            TILES, BLOCK, BLOCK_D,
        )  # fmt: skip
        tl.debug_barrier()
        ks = load_sequence(d_k, d_k_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
        qs = load_sequence(d_q, d_q_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    vs = load_sequence(v, v_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    d_os = load_sequence(d_o, d_o_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    d_ks = (tl.zeros([BLOCK, BLOCK_D], tl.float32),) * TILES
    d_vs = (tl.zeros([BLOCK, BLOCK_D], tl.float32),) * TILES
    # The last queries first: then the gradients of the last keys are complete after the first round.
    for ROW in tl.static_range(TILES - 1, -1, -1):
        rows = ROW * BLOCK + tl.arange(0, BLOCK)
        weights, _t, inverse_sum, _mean_t = softmax_weights(qs[ROW], ks, None, ROW, scale_log2, BLOCK)
        p, a, mean_a = softmax_and_gradient(weights, inverse_sum, d_os[ROW], vs, ROW, BLOCK)
        d_q_tile = tl.zeros([BLOCK, BLOCK_D], tl.float32)
        d_logits: tl.tuple = ()
        for j in tl.static_range(ROW + 1):
            d_logits = d_logits + ((p[j] * (a[j] - mean_a[:, None])).to(half),)
            d_q_tile = dot(d_logits[j], ks[j], d_q_tile)
        store_rows(d_q, d_q_strides, batch, head, rows, d_q_tile * scale, seq_len, head_dim, BLOCK_D)
        earlier_d_ks: tl.tuple = ()
        earlier_d_vs: tl.tuple = ()
        for j in tl.static_range(ROW, -1, -1):
            d_v_tile = dot(p[j].to(half).T, d_os[ROW], d_vs[j])
            d_k_tile = dot(d_logits[j].T, qs[ROW], d_ks[j])
            if j == ROW:
                store_rows(d_v, d_v_strides, batch, head, rows, d_v_tile, seq_len, head_dim, BLOCK_D)
                store_rows(d_k, d_k_strides, batch, head, rows, d_k_tile * scale, seq_len, head_dim, BLOCK_D)
            else:
                earlier_d_ks = (d_k_tile,) + earlier_d_ks
                earlier_d_vs = (d_v_tile,) + earlier_d_vs
        d_ks = earlier_d_ks
        d_vs = earlier_d_vs
    if frequency is not None:  # only now, when the registers are free; what was written is still in the caches
        tl.debug_barrier()
        to = sums if sums is None else sums + tl.program_id(0) * TILES * 2 * BLOCK_D
        k_to = sums if sums is None else to + BLOCK_D
        turn_gradient(
            d_q, d_q_strides, q, q_strides, batch, head, seq_len, head_dim, frequency, gain, to, 2, eps,
            TILES, BLOCK, BLOCK_D,
        )  # fmt: skip
        turn_gradient(
            d_k, d_k_strides, k, k_strides, batch, head, seq_len, head_dim, frequency, k_gain, k_to, 2, eps,
            TILES, BLOCK, BLOCK_D,
        )  # fmt: skip


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    frequency: Tensor | None = None,
    gains: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """The output `[B, T, H, D]` for T up to 128.

    q and k are rotated with a `frequency` `[groups, D / 2]`, and before that normed with `gains` `[groups, 2, D]`.
    """
    batch, length, heads, head_dim = q.shape
    o = q.new_empty(q.shape)
    _short_attention_forward_kernel[(batch * heads,)](
        *(*with_strides(*map(unit_stride, (q, k, v)), o), *with_group(frequency), gains),
        *(heads, length, head_dim, head_dim**-0.5 * LOG2_E.value, sequences_of_group(batch, frequency), eps),
        **short_constants(q, BLOCK),
    )
    return o


def backward(
    gradients: tuple[Tensor, ...],
    d_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    frequency: Tensor | None = None,
    gains: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor | None:
    """Writes dQ, dK and dV to `gradients`, with the strides of q, k and v; returns that of the gains."""
    batch, length, heads, head_dim = q.shape
    constants = short_constants(q, BLOCK)
    sums = None if gains is None else gain_sums(gains, q, constants["TILES"])
    _short_attention_backward_kernel[(batch * heads,)](
        *(*with_strides(*map(unit_stride, (d_o, q, k, v)), *gradients), *with_group(frequency), gains, sums),
        *(heads, length, head_dim, head_dim**-0.5, head_dim**-0.5 * LOG2_E.value),
        *(sequences_of_group(batch, frequency), eps),
        **constants,
    )
    return None if gains is None or sums is None else sum_parts(sums, gains.dtype)
