"""A linear layer. The gradient of its weight splits the long sum over rows."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.autocast import autocast
from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.common.shapes import check_shapes


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str = "auto") -> Tensor:
    """`x weight^T + bias`. Under autocast `x` and `weight` are cast to its dtype first, as `F.linear` does.

    The forward and the gradient of `x` are one batched product each. The gradient of `weight` is a small matrix summed
    over all rows. It has too few tiles to fill a GPU, so our kernel splits the sum.

    Args:
        x: `[..., K]`; the kernel takes rows of any strides.
        weight: `[M, K]`, in the dtype of `x`.
        bias: `[M]`.
        backend: `auto`, `reference` (`F.linear`) or `triton` (float32 and bfloat16, sums in float32).

    Returns:
        `[..., M]` in the dtype of the product. The reference adds the bias to the rounded product, and gives the wider
        of their dtypes; our operator rounds once.

    Raises:
        ValueError: shapes or dtypes that do not fit, or a backend that cannot run here.
    """
    check_shapes(("weight", weight, ("M", *x.shape[-1:])), fitting=f"x {tuple(x.shape)}")
    if bias is not None:
        check_shapes(("bias", bias, weight.shape[:1]), fitting=f"weight {tuple(weight.shape)}")
    x, weight = autocast(x, weight)
    if x.dtype != weight.dtype:
        raise ValueError(f"x is {x.dtype} and weight {weight.dtype}: cast both to one dtype, or use autocast")
    if resolve_backend(backend, x.device, why_not_triton(x)) == "reference":
        y = F.linear(x, weight)
        return y if bias is None else y + bias
    from mixerlab.kernels.fused.linear.operator import product  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    rows = x.reshape(1, x.shape[:-1].numel(), x.shape[-1])
    y = product(rows, weight[None], None if bias is None else bias[None])
    return y.view(*x.shape[:-1], weight.shape[0])


def join_rows(*weights: Tensor) -> Tensor:
    """Weights `[M_i, K]` one above the other, for one product with all of them: `[sum of M_i, K]`.

    If they are neighbours in memory in this order, the result is a view; else it is a copy. Whoever lays parameters out
    has to put these side by side.
    """
    if torch.compiler.is_compiling():  # addresses are not known then
        return torch.cat(weights)
    return _JoinRows.apply(*weights)


def _are_neighbours(weights: Sequence[Tensor]) -> bool:
    """Whether each weight begins where the one before it ends, has contiguous rows, and has the same replica stride."""
    first, width = weights[0], weights[0].shape[-1]
    at = first.storage_offset()
    for weight in weights:
        alike = (
            weight.dtype == first.dtype
            and weight.shape[:-2] == first.shape[:-2]
            and weight.shape[-1] == width
            and weight.stride() == (*first.stride()[:-2], width, 1)
            and weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
            and weight.storage_offset() == at
        )
        if not alike:
            return False
        at += weight.shape[-2] * width
    return True


class _JoinRows(torch.autograd.Function):
    """Joins along the last axis but one, so that under vmap the replicas stay in front."""

    @staticmethod
    def forward(*weights: Tensor) -> Tensor:
        if not _are_neighbours(weights):
            return torch.cat(weights, dim=-2)
        first = weights[0]
        rows = sum(weight.shape[-2] for weight in weights)
        return first.as_strided((*first.shape[:-2], rows, first.shape[-1]), first.stride())

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.rows = [weight.shape[-2] for weight in inputs]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, ...]:
        return grad.split(ctx.rows, dim=-2)

    @staticmethod
    def vmap(info, in_dims, *weights: Tensor):
        in_front = (
            weight.expand(info.batch_size, *weight.shape) if dim is None else weight.movedim(dim, 0)
            for weight, dim in zip(weights, in_dims, strict=True)
        )
        return _JoinRows.apply(*in_front), 0
