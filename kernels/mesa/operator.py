"""The Triton mesa layer as PyTorch operators."""

import torch
from torch import Tensor

from mixerlab.kernels.common.addressing import packed_heads
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_chunked import tile_options
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.mesa.triton_kernels import (
    adjoint_kernel,
    backward_chunk_kernel,
    backward_states_kernel,
    solve_kernel,
    states_kernel,
)

# The iterations of a chunk end when no row has a larger residual, relative to its right-hand side.
TOLERANCES = {torch.bfloat16: 1e-4, torch.float32: 1e-6}


@operator("mesa")
def forward(q, k, v, log_decay, beta, ridge, iterations: int, chunk_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, and for the backward the solutions and the states.

    `ridge` is `[groups, H, D]`: the first one is for the first `B / groups` sequences, and so on.
    """
    q, k, log_decay, beta, ridge = (x.contiguous() for x in (q, k, log_decay, beta, ridge))
    v = packed_heads(v)
    batch, length, heads, _ = q.shape
    out, solutions, key_states, value_states = results = _forward_results(
        q, k, v, log_decay, beta, ridge, iterations, chunk_size
    )
    options, precision = tile_options(q, chunk_size), _precision(q)
    states_kernel[(batch * heads,)](
        k, v, log_decay, beta, key_states, value_states, length, v.stride(1), **options, PRECISE=precision["PRECISE"]
    )
    solve_kernel[(key_states.shape[2], batch * heads)](
        *(q, k, v, log_decay, beta, ridge, key_states, value_states, out, solutions),
        *(length, v.stride(1), batch // len(ridge)),
        ITERATIONS=iterations,
        TOLERANCE=TOLERANCES[k.dtype],
        **options,
        **precision,
    )
    return results


@forward.register_fake
def _forward_results(q, k, v, log_decay, beta, ridge, iterations, chunk_size):
    batch, length, heads, head_dim = q.shape
    chunks = (length + chunk_size - 1) // chunk_size
    states = [beta.new_empty(batch, heads, chunks, head_dim, head_dim) for _ in range(2)]
    return q.new_empty(q.shape), beta.new_empty(q.shape), *states


@operator("mesa_backward", like="q k v log_decay beta ridge", refusal="mesa cannot be differentiated twice")
def backward(
    d_out, q, k, v, log_decay, beta, ridge, solutions, key_states, value_states, iterations: int, chunk_size: int
):
    """The gradients of q, k, v, log_decay, beta and ridge."""
    d_out, k, log_decay, beta, ridge = (x.contiguous() for x in (d_out, k, log_decay, beta, ridge))
    v = packed_heads(v)
    batch, length, heads, head_dim = k.shape
    chunks = key_states.shape[2]
    d_q, d_k, d_v, d_log_decay, d_beta = (x.new_empty(x.shape) for x in (q, k, v, log_decay, beta))
    adjoints, d_reading = torch.empty_like(solutions), torch.empty_like(beta)
    d_key_states, d_value_states = torch.empty_like(key_states), torch.empty_like(value_states)
    d_ridge = ridge.new_empty(len(ridge), batch // len(ridge) * chunks, heads, head_dim)
    gates, states, solved = (log_decay, beta), (key_states, value_states), (solutions, adjoints)
    options, precision = tile_options(k, chunk_size), _precision(k)
    adjoint_kernel[(chunks, batch * heads)](
        *(d_out, k, v, *gates, ridge, *states, solutions),
        *(d_q, adjoints, d_reading, d_ridge),
        *(length, v.stride(1), batch // len(ridge)),
        ITERATIONS=iterations,
        TOLERANCE=TOLERANCES[k.dtype],
        **options,
        **precision,
    )
    precise = {"PRECISE": precision["PRECISE"]}
    backward_states_kernel[(batch * heads,)](
        d_out, *gates, *solved, d_key_states, d_value_states, length, **{**options, "num_stages": 2}, **precise
    )
    backward_chunk_kernel[(chunks, batch * heads)](
        *(d_out, k, v, *gates, *states, d_key_states, d_value_states, *solved, d_reading),
        *(d_k, d_v, d_log_decay, d_beta),
        *(length, v.stride(1)),
        **options,
        **precision,
    )
    return d_q, d_k, d_v, d_log_decay, d_beta, sum_parts(d_ridge, ridge.dtype)


def _precision(q: Tensor) -> dict:
    """The precision of products: FAST in the solver, if the operands are float32, and PRECISE everywhere else."""
    if q.dtype == torch.float32:
        return {"FAST": "tf32x3", "PRECISE": "tf32x3"}
    return {"FAST": "tf32", "PRECISE": "bf16x3"}


register_gradient(forward, backward)
