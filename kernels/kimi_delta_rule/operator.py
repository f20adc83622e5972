"""The Triton delta rule with a decay for each channel as PyTorch operators."""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_chunked import precision_of, tile_options
from mixerlab.kernels.kimi_delta_rule.triton_kernels import (
    backward_chunk_kernel,
    backward_state_kernel,
    chunk_kernel,
    cumulative_kernel,
    forward_kernel,
)

CHANNELS = 16  # that a program of `backward_chunk_kernel` takes
LOOP = {"num_stages": 2}  # of the kernels that walk over chunks: a third stage takes shared memory of other programs


@operator("kimi_delta_rule")
def forward(
    q, k, v, log_decay, beta, scale: float, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output, and for the backward b, N, P, states, writes and errors (see `triton_kernels.py`)."""
    q, k, v, log_decay, beta = (x.contiguous() for x in (q, k, v, log_decay, beta))
    batch, length, heads, _ = q.shape
    results = _forward_results(q, k, v, log_decay, beta, scale, chunk_size)
    out, cumulative, solvers, scores, states, writes, errors = results
    options, levels = _options(q, chunk_size)
    grid = states.shape[2], batch * heads
    cumulative_kernel[grid](log_decay, cumulative, length, **tile_options(q, chunk_size))
    chunk_kernel[grid](q, k, cumulative, beta, solvers, scores, length, **options, **levels)
    forward_kernel[grid[1:]](
        q, k, v, cumulative, beta, solvers, scores, out, states, writes, errors, scale, length, **options | LOOP
    )
    return results


@forward.register_fake
def _forward_results(q, k, v, log_decay, beta, scale, chunk_size):
    batch, length, heads, head_dim = q.shape
    chunks = (length + chunk_size - 1) // chunk_size
    out, cumulative, writes, errors = (x.new_empty(x.shape) for x in (v, log_decay, v, v))
    solvers, scores = (q.new_empty(batch, heads, chunks, chunk_size, chunk_size) for _ in range(2))
    return out, cumulative, solvers, scores, q.new_empty(batch, heads, chunks, head_dim, head_dim), writes, errors


@operator("kimi_delta_rule_backward", like="q k errors cumulative beta")
def backward(d_out, q, k, beta, cumulative, solvers, scores, states, writes, errors, scale: float, chunk_size: int):
    """The gradients of q, k, v, log_decay and beta."""
    d_out, q, k, beta = (x.contiguous() for x in (d_out, q, k, beta))
    batch, length, heads, _ = q.shape
    d_q, d_k, d_v, d_log_decay, d_beta = (x.new_empty(x.shape) for x in (q, k, errors, cumulative, beta))
    d_states = torch.empty_like(states)
    options, levels = _options(q, chunk_size)
    backward_state_kernel[(batch * heads,)](
        *(d_out, q, k, cumulative, beta, errors, solvers, scores, d_v, d_beta, d_states, scale, length),
        **options | LOOP,
    )
    backward_chunk_kernel[(states.shape[2], batch * heads, q.shape[3] // CHANNELS)](
        *(d_out, q, k, cumulative, states, writes, d_v, d_states, d_q, d_k, d_log_decay, scale, length),
        W=CHANNELS,
        **options,
        **levels,
    )
    return d_q, d_k, d_v, d_log_decay, d_beta


def _options(q: Tensor, chunk_size: int) -> tuple[dict, dict]:
    return {**tile_options(q, chunk_size), "PRECISION": precision_of(q)}, {"LEVELS": chunk_size.bit_length() - 1}


register_gradient(forward, backward, kept="q k beta")
