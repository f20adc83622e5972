"""The Triton gated delta rule as PyTorch operators."""

import math

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register
from mixerlab.kernels.common.triton_chunked import tile_options
from mixerlab.kernels.gated_delta_rule.triton_kernels import (
    backward_chunk_kernel,
    backward_state_kernel,
    forward_kernel,
    inverse_kernel,
)

WIDEST_VALUES = 128  # columns of the values of one key head that the backward of a chunk takes at once


def gated_delta_rule_triton(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, chunk_size: int
) -> Tensor:
    """See `kernels.gated_delta_rule.gated_delta_rule`."""
    return forward(q, k, v, log_decay.float(), beta.float(), scale, chunk_size)[0]


@torch.library.custom_op("mixerlab::gated_delta_rule", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, scale: float, chunk_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output, like v, and for the backward states, inverses, writes and errors (see `triton_kernels.py`)."""
    q, k, v, log_decay, beta = (x.contiguous() for x in (q, k, v, log_decay, beta))
    batch, length, heads, _ = q.shape
    per_key = v.shape[2] // heads
    out, states, inverses, writes, errors = results = _forward_results(q, k, v, log_decay, beta, scale, chunk_size)
    options = _options(q, chunk_size)
    # The inverses are products of small blocks. With one warp there are no barriers between them.
    warps = 1 if q.shape[3] <= 64 else options["num_warps"]
    inverse_kernel[(states.shape[2], batch * heads)](
        k, log_decay, beta, inverses, length, **{**options, "num_warps": warps}
    )
    forward_kernel[(batch * heads * per_key,)](
        q, k, v, log_decay, beta, inverses, out, states, writes, errors, scale, length, E=per_key, **options
    )
    return results


@forward.register_fake
def _forward_results(q, k, v, log_decay, beta, scale, chunk_size):
    batch, length, heads, head_dim = q.shape
    chunks = (length + chunk_size - 1) // chunk_size
    out, writes, errors = (torch.empty_like(v, memory_format=torch.contiguous_format) for _ in range(3))
    states = q.new_empty(batch, v.shape[2], chunks, head_dim, head_dim)
    inverses = q.new_empty(batch, heads, chunks, chunk_size, chunk_size)
    return out, states, inverses, writes, errors


@torch.library.custom_op("mixerlab::gated_delta_rule_backward", mutates_args=())
def backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    states: Tensor,
    inverses: Tensor,
    writes: Tensor,
    errors: Tensor,
    scale: float,
    chunk_size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k, v, log_decay and beta."""
    d_out, q, k, log_decay, beta = (x.contiguous() for x in (d_out, q, k, log_decay, beta))
    batch, length, heads, _ = q.shape
    per_key = d_out.shape[2] // heads
    d_q, d_k, d_v, d_log_decay, d_beta = results = _backward_results(
        d_out, q, k, log_decay, beta, states, inverses, writes, errors, scale, chunk_size
    )
    d_states = torch.empty_like(states)
    d_betas = beta.new_empty(errors.shape[:3])  # through each value head
    inputs = (d_out, q, k, log_decay, beta)
    options = {"E": per_key, **_options(q, chunk_size)}
    backward_state_kernel[(batch * heads * per_key,)](
        *inputs, errors, inverses, d_v, d_betas, d_states, scale, length, **options
    )
    at_once = math.gcd(per_key, max(1, WIDEST_VALUES // q.shape[3]))
    backward_chunk_kernel[(states.shape[2], batch * heads)](
        *inputs,
        *(states, writes, d_v, d_states, d_betas, d_q, d_k, d_log_decay, d_beta, scale, length),
        V=at_once * q.shape[3],
        **options,
    )
    return results


@backward.register_fake
def _backward_results(d_out, q, k, log_decay, beta, states, inverses, writes, errors, scale, chunk_size):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, errors, log_decay, beta))


def _options(q: Tensor, chunk_size: int) -> dict:
    # Of products of float32 operands. With bfloat16 inputs these occur only in the triangular inverses.
    precision = "tf32x3" if q.dtype == torch.float32 else "tf32"
    return {**tile_options(q, chunk_size), "PRECISION": precision}


def _save(ctx, inputs, output):
    q, k, _, log_decay, beta, ctx.scale, ctx.chunk_size = inputs
    ctx.save_for_backward(q, k, log_decay, beta, *output[1:])
    # Saved tensors are outputs without gradients: None for these, not zeros.
    ctx.set_materialize_grads(False)


def _gradients(ctx, d_out, *_):
    return *backward(d_out, *ctx.saved_tensors, ctx.scale, ctx.chunk_size), None, None


register(forward, save=_save, gradients=_gradients)
register(backward)
