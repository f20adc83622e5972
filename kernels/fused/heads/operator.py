"""The Triton kernel of `split_heads` as PyTorch operators, and the function that joins them to autograd and vmap."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import fold_replicas
from mixerlab.kernels.fused.heads import triton_kernels
from mixerlab.kernels.fused.heads.parts import Form, Part, columns_of, numbers_of, parts_of, views, with_views


@torch.library.custom_op("mixerlab::split_heads", mutates_args=())
def split(
    packed: Tensor, inverse_frequency: Tensor | None, gains: Tensor | None, eps: float, numbers: list[int]
) -> Tensor:
    """Memory with those parts (`numbers_of`) that are not views, for `gains` `[groups, RMS-normed parts, width]`.

    `packed` `[groups * B, T, C]` has the sequences of one group of parameters after another.
    """
    memory, parts = _memory(packed, inverse_frequency, gains, eps, numbers), parts_of(numbers)
    triton_kernels.split(packed, inverse_frequency, parts, _results_in(memory, packed, parts), gains, eps)
    return memory


@split.register_fake
def _memory(packed, inverse_frequency, gains, eps, numbers):
    written = [part for part in parts_of(numbers) if part.form != Form.VIEW]
    return packed.new_empty((columns_of(written), *packed.shape[:2]))


def _results_in(memory: Tensor, packed: Tensor, parts: Sequence[Part]) -> list[Tensor]:
    """The parts that are not views, one behind the other: Parallax's backward copies q and rho that lie otherwise."""
    written = [part for part in parts if part.form != Form.VIEW]
    pieces = memory.split([columns_of([part]) for part in written])
    return [x.view(*packed.shape[:2], *part[:2]) for x, part in zip(pieces, written, strict=True)]


@torch.library.custom_op("mixerlab::split_heads_backward", mutates_args=())
def split_backward(
    grads: list[Tensor],
    packed: Tensor,
    inverse_frequency: Tensor | None,
    gains: Tensor | None,
    eps: float,
    numbers: list[int],
) -> list[Tensor]:
    """The gradient of `packed` from those of all parts, including the views, and that of `gains` if there are any."""
    grad_packed = packed.new_empty(packed.shape)
    grad_gains = triton_kernels.split_backward(
        grads, packed, inverse_frequency, parts_of(numbers), grad_packed, gains, eps
    )
    return [grad_packed] if grad_gains is None else [grad_packed, grad_gains]


@split_backward.register_fake
def _(grads, packed, inverse_frequency, gains, eps, numbers):
    return [x.new_empty(x.shape) for x in (packed, gains) if x is not None]


class Split(torch.autograd.Function):
    """`split` and its backward, with the parts that are views: a function can return views of its inputs."""

    @staticmethod
    def forward(
        packed: Tensor, inverse_frequency: Tensor | None, gains: Tensor | None, eps: float, parts: tuple[Part, ...]
    ) -> tuple[Tensor, ...]:
        if all(part.form == Form.VIEW for part in parts):
            return tuple(views(packed, parts))
        memory = split(packed, inverse_frequency, gains, eps, numbers_of(parts))
        return with_views(_results_in(memory, packed, parts), packed, parts)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        *tensors, ctx.eps, ctx.parts = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        grad_packed, *grad_gains = split_backward(list(grads), *ctx.saved_tensors, ctx.eps, numbers_of(ctx.parts))
        return grad_packed, None, grad_gains[0] if grad_gains else None, None, None

    @staticmethod
    def vmap(info, in_dims, packed, inverse_frequency, gains, eps, parts):
        """Replicas fold into the batch and the groups. They share the frequencies, which have no axis to fold into."""
        dim, frequency_dim, gains_dim, *_ = in_dims
        if frequency_dim is not None:
            raise ValueError("inverse_frequency has a replica axis: pass one [D / 2] for all replicas")

        def folded(packed: Tensor, gains: Tensor | None) -> tuple[Tensor, ...]:
            return Split.apply(packed, inverse_frequency, gains, eps, parts)

        return fold_replicas(folded, info, (dim, gains_dim), packed, gains)
