"""Embedding look-up, alone or with the RMSNorm of its rows; its gradient is a product with one-hot rows."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import resolve_backend
from kernels.fused.operators import register_gradient, register_replicas, why_not_triton
from kernels.fused.rms_norm import add_rms_norm, default_dtype

# Rows of a table that is normed: the second gradient with one-hot rows costs a product with each. On an H200 a step of
# a small attention model is as fast either way with 128 rows, 3 % slower with 512 and 4 % with 8,192.
MOST_NORMED = 128


def embedding(tokens: Tensor, weight: Tensor, *, out_dtype: torch.dtype | None = None, backend: str = "auto") -> Tensor:
    """Row `tokens` of `weight`.

    Args:
        tokens: int64 `[...]`, from 0 to V - 1 (not checked on a GPU).
        weight: `[V, D]`.
        out_dtype: dtype of the result; that of `weight` by default.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16). The kernel adds the gradient
            of a row in float32, in the same order every time, at the cost of N x V x D products.

    Returns:
        `[..., D]`.

    Raises:
        ValueError: a weight that is not a matrix, or a backend that cannot run here.
    """
    if weight.ndim != 2:
        raise ValueError(f"weight has shape {tuple(weight.shape)}: pass [V, D]")
    out_dtype = out_dtype or weight.dtype
    why = why_not_triton(weight)
    if resolve_backend(backend, weight.device, supported=not why, why=why) == "reference":
        return F.embedding(tokens, weight).to(out_dtype)
    # One group of parameters; vmap folds replicas into more.
    return look_up(tokens.reshape(1, -1), weight[None], out_dtype).view(*tokens.shape, -1)


def embedding_rms_norm(
    tokens: Tensor, table: Tensor, gain: Tensor, eps: float, *, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """`x = embedding(tokens, table)` and `rms_norm(x, gain, eps)`, both `[..., D]`; the arguments are theirs.

    The norm of a token is the same wherever it stands: a small table is normed, and looked up twice. The norm's
    backward has V rows too, for the gradients of both results are added up by token before it.
    """
    if len(table) > MOST_NORMED:
        return add_rms_norm(embedding(tokens, table, backend=backend), None, gain, eps, backend=backend)
    table, normed = add_rms_norm(table, None, gain, eps, out_dtype=table.dtype, backend=backend)
    x = embedding(tokens, table, backend=backend)
    return x, embedding(tokens, normed, out_dtype=default_dtype(x), backend=backend)


@torch.library.custom_op("mixerlab::embedding", mutates_args=())
def look_up(tokens: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """`embedding` of `tokens` `[groups, N]` in `weight` `[groups, V, D]`: `[groups, N, D]`."""
    from kernels.fused import triton_embedding  # only where it runs: Triton is optional

    return triton_embedding.forward(tokens, weight, out_dtype)


@torch.library.custom_op("mixerlab::embedding_backward", mutates_args=())
def look_up_backward(grad: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    """Gradient of `weight`, which only gives its shape and dtype."""
    from kernels.fused import triton_embedding

    return triton_embedding.backward(grad, tokens, weight.shape[1], weight.dtype)


@look_up.register_fake
def _(tokens, weight, out_dtype):
    return weight.new_empty((*tokens.shape, weight.shape[2]), dtype=out_dtype)


@look_up_backward.register_fake
def _(grad, tokens, weight):
    return weight.new_empty(weight.shape)


def _save(ctx, inputs, output):
    tokens, weight, _ = inputs
    ctx.save_for_backward(tokens, weight)


def _gradients(ctx, grad):
    return None, look_up_backward(grad, *ctx.saved_tensors), None


register_gradient(look_up, look_up_backward, _save, _gradients)
register_replicas(look_up, look_up_backward)
