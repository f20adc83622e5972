"""The Triton centring as PyTorch operators."""

from torch import Tensor

from mixerlab.kernels.centring.reference import CHUNK_SIZE
from mixerlab.kernels.centring.triton_kernels import backward_kernel, forward_kernel
from mixerlab.kernels.common.addressing import packed_heads
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_chunked import precision_of


@operator("centred")
def forward(q, k, v, log_decay, beta) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Those of `kernels.centring.centred`, and for the backward the sums before each chunk."""
    q, k, log_decay, beta = (x.contiguous() for x in (q, k, log_decay, beta))
    v = packed_heads(v)
    inputs = q, k, v, log_decay, beta
    results = _forward_results(*inputs)
    forward_kernel[(q.shape[0] * q.shape[2],)](*inputs, *results, q.shape[1], v.stride(1), **_options(q, 2))
    return results


@forward.register_fake
def _forward_results(q, k, v, log_decay, beta):
    batch, length, heads, head_dim = q.shape
    results = [x.new_empty(x.shape) for x in (q, k, v, beta, v)]
    return *results, beta.new_empty(batch, heads, -(-length // CHUNK_SIZE), 2 * head_dim + 1)


@operator("centred_backward", like="k v log_decay beta")
def backward(d_q, d_k, d_v, d_beta, d_mean_v, k, v, log_decay, beta, k_out, v_out, sums):
    """The gradients of k, v, log_decay and beta; that of q is that of its result."""
    gradients = [x.contiguous() for x in (d_q, d_k, d_v, d_beta, d_mean_v)]
    k, log_decay, beta = (x.contiguous() for x in (k, log_decay, beta))
    v = packed_heads(v)
    inputs = k, v, log_decay, beta
    d_k, d_v, d_log_decay, d_beta = results = [x.new_empty(x.shape) for x in inputs]
    backward_kernel[(k.shape[0] * k.shape[2],)](
        *(*gradients, *inputs, k_out, v_out, sums, *results, k.shape[1], v.stride(1)), **_options(k, 4)
    )
    return d_k, d_v, d_log_decay, d_beta


def _options(q: Tensor, warps: int) -> dict:
    constants = {"H": q.shape[2], "D": q.shape[3], "C": CHUNK_SIZE, "PRECISION": precision_of(q)}
    return constants | {"num_warps": warps, "num_stages": 1}


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs[1:], *output[1:3], output[-1])


def _gradients(ctx, d_q, d_k, d_v, d_beta, d_mean_v, _):
    return d_q, *backward(d_q, d_k, d_v, d_beta, d_mean_v, *ctx.saved_tensors)


register_gradient(forward, _gradients, save=_save)
