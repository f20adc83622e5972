"""Causal softmax attention of a short sequence: one launch each way, a program for each head, and nothing saved.

The weights of a query are all in registers, and the backward computes them again. So there is no running mean, no dO·o
to read and no float32 gradient to convert, on which PyTorch's kernels spend most of their time at such lengths. The
kernels share their first steps with those of Parallax (`kernels/common/triton_attention.py`).
"""

# ruff: noqa: RUF005 - Triton compiles `a + (b,)` but not `(*a, b)`.

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_attention import (
    dot,
    load_sequence,
    softmax_and_gradient,
    softmax_weights,
    store_rows,
)


@triton.jit
def short_attention_forward_kernel(
    q, q_strides, k, k_strides, v, v_strides, o, o_strides,
    heads, seq_len, head_dim, scale_log2,
    TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    ks = load_sequence(k, k_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    qs = load_sequence(q, q_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    vs = load_sequence(v, v_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    for ROW in tl.static_range(TILES):
        rows = ROW * BLOCK + tl.arange(0, BLOCK)
        weights, _t, inverse_sum, _mean_t = softmax_weights(qs[ROW], ks, None, ROW, scale_log2, BLOCK)
        total = tl.zeros([BLOCK, BLOCK_D], tl.float32)
        for j in tl.static_range(ROW + 1):
            total = dot(weights[j].to(v.dtype.element_ty), vs[j], total)
        store_rows(o, o_strides, batch, head, rows, total * inverse_sum[:, None], seq_len, head_dim, BLOCK_D)


@triton.jit
def short_attention_backward_kernel(
    d_o, d_o_strides, q, q_strides, k, k_strides, v, v_strides,
    d_q, d_q_strides, d_k, d_k_strides, d_v, d_v_strides,
    heads, seq_len, head_dim, scale, scale_log2,
    TILES: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(0) // heads
    head = tl.program_id(0) % heads
    half = q.dtype.element_ty
    ks = load_sequence(k, k_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
    qs = load_sequence(q, q_strides, batch, head, seq_len, head_dim, TILES, BLOCK, BLOCK_D)
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
            d_logits += ((p[j] * (a[j] - mean_a[:, None])).to(half),)
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
