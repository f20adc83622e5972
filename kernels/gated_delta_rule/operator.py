"""The Triton gated delta rule as PyTorch operators."""

import math

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_chunked import precision_of, tile_options
from mixerlab.kernels.gated_delta_rule.triton_kernels import (
    backward_chunk_kernel,
    backward_state_kernel,
    forward_kernel,
    inverse_kernel,
)

PART = 64  # columns of the values of a head that a program takes which walks over chunks, and whose state it holds
WARPS = 4  # of such a program: two of them fit into a multiprocessor
WIDEST_VALUES = 128  # columns of the values of one key head that the backward of a chunk takes at once


@operator("gated_delta_rule")
def forward(q, k, v, log_decay, beta, scale: float, chunk_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output, like v, and for the backward states, inverses, writes and errors (see `triton_kernels.py`).

    A head's values are as many heads of `PART` columns to the kernels, which share its keys and its gates.
    """
    q, k, v, log_decay, beta = (x.contiguous() for x in (q, k, v, log_decay, beta))
    batch, length, heads, head_dim = q.shape
    out, states, inverses, writes, errors = results = _forward_results(q, k, v, log_decay, beta, scale, chunk_size)
    options = _options(q, chunk_size)
    parts = _parts(v, heads)
    # The inverses are products of small blocks. With one warp there are no barriers between them.
    warps = 1 if head_dim <= 64 else options["num_warps"]
    inverse_kernel[(states.shape[2], batch * heads)](
        k, log_decay, beta, inverses, length, **{**options, "num_warps": warps}
    )
    forward_kernel[(batch * heads * parts["E"],)](
        *(q, k, v, log_decay, beta, inverses, out, states, writes, errors, scale, length),
        **parts | options | {"num_warps": WARPS},
    )
    return results


@forward.register_fake
def _forward_results(q, k, v, log_decay, beta, scale, chunk_size):
    batch, length, heads, head_dim = q.shape
    chunks = (length + chunk_size - 1) // chunk_size
    out, writes, errors = (v.new_empty(v.shape) for _ in range(3))
    states = q.new_empty(batch, v.shape[2], chunks, head_dim, head_dim)  # a part after the other
    inverses = q.new_empty(batch, heads, chunks, chunk_size, chunk_size)
    return out, states, inverses, writes, errors


@operator("gated_delta_rule_backward", like="q k errors log_decay beta")
def backward(d_out, q, k, log_decay, beta, states, inverses, writes, errors, scale: float, chunk_size: int):
    """The gradients of q, k, v, log_decay and beta."""
    d_out, q, k, log_decay, beta = (x.contiguous() for x in (d_out, q, k, log_decay, beta))
    batch, length, heads, _ = q.shape
    d_q, d_k, d_v, d_log_decay, d_beta = (x.new_empty(x.shape) for x in (q, k, errors, log_decay, beta))
    d_states = torch.empty_like(states)
    parts = _parts(errors, heads)
    d_betas = beta.new_empty(batch, length, heads, parts["E"])  # through each part of the values
    inputs = (d_out, q, k, log_decay, beta)
    options = parts | _options(q, chunk_size)
    backward_state_kernel[(batch * heads * parts["E"],)](
        *(*inputs, errors, inverses, d_v, d_betas, d_states, scale, length), **options | {"num_warps": WARPS}
    )
    at_once = math.gcd(parts["E"], WIDEST_VALUES // parts["W"])
    backward_chunk_kernel[(states.shape[2], batch * heads)](
        *inputs,
        *(states, writes, d_v, d_states, d_betas, d_q, d_k, d_log_decay, d_beta, scale, length),
        V=at_once * parts["W"],
        **options,
    )
    return d_q, d_k, d_v, d_log_decay, d_beta


def _parts(v: Tensor, heads: int) -> dict:
    """How many parts E the values of a key head have, and the columns W of one."""
    width = min(PART, v.shape[3])
    return {"E": v.shape[2] // heads * v.shape[3] // width, "W": width}


def _options(q: Tensor, chunk_size: int) -> dict:
    return {**tile_options(q, chunk_size), "PRECISION": precision_of(q)}


register_gradient(forward, backward, kept="q k log_decay beta")
