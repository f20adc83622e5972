"""One pass over a cache of keys and values, divided over programs, and a small kernel that merges the parts.

The rows of a program are all queries that share a key head: n tokens times the heads of a group, each as a row of q and
a row of ρ below it. One product with K gives logits and t of all of them, one product with V both sums.

From Hopper on the merging kernel is launched when the last part begins (programmatic dependent launch) and waits on the
card, which saves half a microsecond of seven. The last program of a head to arrive could merge the parts instead; that
was slower, since it needs a counter, which a captured graph clears by a launch, and keeps the other processors idle.
"""

import triton
import triton.language as tl

from mixerlab.kernels.common.triton_attention import dot
from mixerlab.kernels.common.triton_halves import upper_lower

STATISTICS = tl.constexpr(4)  # of a part: the largest logit, Σ e, Σ e (t - centre), the centre
MERGED_COLUMNS = tl.constexpr(32)  # of the output, by one program
MERGED_PARTS = tl.constexpr(64)  # at once: what fits in registers


@triton.jit
def prefetch(pointers):
    """Brings the lines of memory at `pointers` into the L2 cache, and does not wait for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1
    )


@triton.jit
def pairs(x, y, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of x above those of y: `[2 ROWS, WIDTH]` of two `[ROWS, WIDTH]`.

    A thread of a tensor core holds the rows r and r + 8: with 8 rows it pairs and parts (`upper_lower`) without
    exchanging any.
    """
    return tl.join(x, y).permute(2, 0, 1).reshape(2 * ROWS, WIDTH)


@triton.jit
def add_two(x0, x1, y0, y1):
    return x0 + y0, x1 + y1


@triton.jit
def add_three(x0, x1, x2, y0, y1, y2):
    return x0 + y0, x1 + y1, x2 + y2


@triton.jit
def decode_kernel(
    q, q_strides, rho, rho_strides, k, k_strides, v, v_strides, o, o_strides,
    sums, statistics, lengths,
    tokens, kv_heads, cache_len, head_dim, scale_log2, window, parts,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, ROWS: tl.constexpr, MERGES: tl.constexpr, EARLY: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, PREFETCHES: tl.constexpr,
):  # fmt: skip
    """The part `program_id(1)` of the cache of one sequence and key head."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    sequence_head = tl.program_id(0)
    part = tl.program_id(1)
    batch = (sequence_head // kv_heads).to(tl.int64)
    kv_head = sequence_head % kv_heads
    length = cache_len
    if lengths is not None:
        length = tl.load(lengths + batch)

    begin = 0
    if window is not None:
        begin = tl.maximum(length - tokens + 1 - window, 0) // BLOCK_N * BLOCK_N
    keys_of_part = tl.cdiv(tl.cdiv(length - begin, BLOCK_N), parts) * BLOCK_N
    first = begin + part * keys_of_part
    stop = tl.minimum(first + keys_of_part, length)

    k += batch * k_strides[0] + kv_head.to(tl.int64) * k_strides[2]
    v += batch * v_strides[0] + kv_head.to(tl.int64) * v_strides[2]
    if PREFETCHES:  # begins to read before the queries are there
        at = tl.maximum(tl.minimum(first + tl.arange(0, BLOCK_N), stop - 1), 0).to(tl.int64)[:, None]
        lines = tl.arange(0, tl.cdiv(BLOCK_D, 64))[None, :] * 64
        prefetch(k + at * k_strides[1] + lines)
        prefetch(v + at * v_strides[1] + lines)

    rows = tl.arange(0, ROWS)
    token = rows // GROUP
    head = (kv_head * GROUP + rows % GROUP).to(tl.int64)
    position = length - tokens + token  # of each query in its sequence
    columns = tl.arange(0, BLOCK_D)
    in_rows = (rows < tokens * GROUP)[:, None] & (columns < head_dim)[None, :]
    at_q = batch * q_strides[0] + token * q_strides[1] + head * q_strides[2]
    at_rho = batch * rho_strides[0] + token * rho_strides[1] + head * rho_strides[2]
    q_rows = tl.load(q + at_q[:, None] + columns[None, :], mask=in_rows, other=0.0)
    rho_rows = tl.load(rho + at_rho[:, None] + columns[None, :], mask=in_rows, other=0.0)
    queries = pairs(q_rows, rho_rows, ROWS, BLOCK_D)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    totals = tl.zeros([ROWS, BLOCK_N], tl.float32)  # summed over keys behind the loop: a sum takes barriers
    t_totals = tl.zeros([ROWS, BLOCK_N], tl.float32)
    # t is rounded to the dtype of v after `centre` is subtracted, the mean of the first tile: otherwise the two terms
    # of the covariance would not cancel where they should.
    centre = tl.zeros([ROWS], tl.float32)
    accumulated = tl.zeros([2 * ROWS, BLOCK_D], tl.float32)
    for start in range(first, stop, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        in_cache = (keys < length)[:, None] & (columns < head_dim)[None, :]
        k_tile = tl.load(k + keys.to(tl.int64)[:, None] * k_strides[1] + columns[None, :], mask=in_cache, other=0.0)
        v_tile = tl.load(v + keys.to(tl.int64)[:, None] * v_strides[1] + columns[None, :], mask=in_cache, other=0.0)
        logits, t = upper_lower(dot(queries, k_tile.T), ROWS, BLOCK_N)
        seen = keys[None, :] <= position[:, None]
        if window is not None:
            seen &= keys[None, :] > position[:, None] - window
        logits = tl.where(seen, logits * scale_log2, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(logits, 1))
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        decay = tl.exp2(largest - base)
        e = tl.exp2(logits - base[:, None])
        if start == first:
            sum_e, sum_et, sum_t = tl.reduce((e, e * t, t), 1, add_three)
            centre = tl.where(sum_e == 0, sum_t / BLOCK_N, sum_et / sum_e)
        t_weights = e * (t - centre[:, None])
        totals = totals * decay[:, None] + e
        t_totals = t_totals * decay[:, None] + t_weights
        weights = pairs(e, t_weights, ROWS, BLOCK_N).to(v.dtype.element_ty)
        accumulated *= tl.join(decay, decay).permute(1, 0).reshape(2 * ROWS)[:, None]
        accumulated = dot(weights, v_tile, accumulated)
        largest = new_largest

    total, t_total = tl.reduce((totals, t_totals), 1, add_two)
    if MERGES:
        first_row = (sequence_head * parts + part).to(tl.int64) * QUERIES
        both = tl.arange(0, 2 * ROWS)
        row = both % ROWS
        at_sums = (first_row + row) * (2 * BLOCK_D) + both // ROWS * BLOCK_D
        is_query = row < tokens * GROUP
        tl.store(sums + at_sums[:, None] + columns[None, :], accumulated, mask=is_query[:, None])
        every = tl.join(tl.join(largest, t_total), tl.join(total, centre)).reshape(ROWS, STATISTICS)
        at_every = (first_row + rows)[:, None] * STATISTICS + tl.arange(0, STATISTICS)[None, :]
        tl.store(statistics + at_every, every, mask=(rows < tokens * GROUP)[:, None])
    else:
        v_sum, cov_sum = upper_lower(accumulated, ROWS, BLOCK_D)
        inverse = 1 / tl.where(total == 0, 1.0, total)
        output = v_sum * (inverse * (1 + t_total * inverse))[:, None] - cov_sum * inverse[:, None]
        at_o = batch * o_strides[0] + token * o_strides[1] + head * o_strides[2]
        tl.store(o + at_o[:, None] + columns[None, :], output, mask=in_rows)


@triton.jit
def merge_kernel(
    sums, statistics, o, o_strides, kv_heads, head_dim, parts,
    GROUP: tl.constexpr, QUERIES: tl.constexpr, EARLY: tl.constexpr, MAX_PARTS: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Some columns of the output of the query `program_id(1)` of one sequence and key head, from its parts.

    With w the weight of a part, o = Σ w ((1 + t̄ - centre) Σ e v - Σ e (t - centre) v) / Σ w Σ e.
    """
    sequence_head = tl.program_id(0)
    query = tl.program_id(1)
    columns = tl.program_id(2) * MERGED_COLUMNS + tl.arange(0, MERGED_COLUMNS)
    start = (sequence_head * parts).to(tl.int64) * QUERIES + query
    every = tl.arange(0, MAX_PARTS)
    at_every = statistics + (start + every * QUERIES) * STATISTICS
    if EARLY:
        tl.extra.cuda.gdc_wait()
    largest = tl.load(at_every, mask=every < parts, other=float("-inf"))
    totals = tl.load(at_every + 1, mask=every < parts, other=0.0)
    t_totals = tl.load(at_every + 2, mask=every < parts, other=0.0)
    centres = tl.load(at_every + 3, mask=every < parts, other=0.0)
    base = tl.max(largest, 0)
    base = tl.where(base == float("-inf"), 0.0, base)
    weight = tl.exp2(largest - base)
    total = tl.sum(weight * totals, 0)
    inverse = 1 / tl.where(total == 0, 1.0, total)
    mean_t = tl.sum(weight * (t_totals + centres * totals), 0) * inverse
    output = tl.zeros([MERGED_COLUMNS], tl.float32)
    TOGETHER: tl.constexpr = min(MAX_PARTS, MERGED_PARTS)
    for first in range(0, parts, TOGETHER):
        part = first + tl.arange(0, TOGETHER)
        at = statistics + (start + part * QUERIES) * STATISTICS
        factor = tl.exp2(tl.load(at, mask=part < parts, other=float("-inf")) - base) * inverse
        centre = tl.load(at + 3, mask=part < parts, other=0.0)
        at_sums = sums + (start + part * QUERIES)[:, None] * (2 * BLOCK_D) + columns[None, :]
        loaded = (part < parts)[:, None] & (columns < head_dim)[None, :]
        v_sum = tl.load(at_sums, mask=loaded, other=0.0)
        cov_sum = tl.load(at_sums + BLOCK_D, mask=loaded, other=0.0)
        output += tl.sum(v_sum * (factor * (1 + mean_t - centre))[:, None] - cov_sum * factor[:, None], 0)
    batch = (sequence_head // kv_heads).to(tl.int64)
    head = (sequence_head % kv_heads).to(tl.int64) * GROUP + query % GROUP
    at_o = batch * o_strides[0] + (query // GROUP) * o_strides[1] + head * o_strides[2]
    tl.store(o + at_o + columns, output, mask=columns < head_dim)
