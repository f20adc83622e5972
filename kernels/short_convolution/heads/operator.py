"""`convolve_heads` as PyTorch operators, and the function that joins them to autograd and vmap."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mixerlab.kernels.common.addressing import addressable
from mixerlab.kernels.common.registration import fold_replicas
from mixerlab.kernels.fused.heads import triton_kernels as triton_heads
from mixerlab.kernels.fused.heads.parts import UNIT_NORM_EPS, Form, Part, numbers_of, parts_of, with_views
from mixerlab.kernels.short_convolution import triton_convolution
from mixerlab.kernels.short_convolution.heads.parts import divided, normed


@torch.library.custom_op("mixerlab::convolve_heads", mutates_args=())
def convolve(packed: Tensor, weight: Tensor, numbers: list[int]) -> list[Tensor]:
    """The parts of `convolve_heads` that are not views, for groups of weights `[groups, channels, taps]`."""
    packed, channels = addressable(packed), weight.shape[1]
    convolved, others = divided(parts_of(numbers), channels)
    results = _results(packed, weight, numbers)
    ys = [y.flatten(2) for y in results[: len(convolved)]]
    triton_convolution.forward(packed[..., :channels], weight, None, ys, *_norms(convolved))
    triton_heads.split(packed[..., channels:], None, others, results[len(convolved) :])
    return results


@torch.library.custom_op("mixerlab::convolve_heads_backward", mutates_args=())
def convolve_backward(grads: list[Tensor], packed: Tensor, weight: Tensor, numbers: list[int]) -> tuple[Tensor, Tensor]:
    """The gradients of `packed` and `weight` from those of all parts, including the views."""
    packed, channels = addressable(packed), weight.shape[1]
    convolved, others = divided(parts_of(numbers), channels)
    grad_packed = packed.new_empty(packed.shape)
    of_ys = [grad.flatten(2).contiguous() for grad in grads[: len(convolved)]]
    of_weight = triton_convolution.backward(
        of_ys, packed[..., :channels], weight, None, grad_packed[..., :channels], *_norms(convolved)
    )
    rest = packed[..., channels:], None, others, grad_packed[..., channels:]
    triton_heads.split_backward(grads[len(convolved) :], *rest)
    return grad_packed, of_weight.view(weight.shape)


def _norms(convolved: Sequence[Part]) -> tuple[int, int, float]:
    """The width of a head, how many parts have unit norm, and what is added to a squared norm."""
    return convolved[0].width, normed(convolved), UNIT_NORM_EPS


@convolve.register_fake
def _results(packed, weight, numbers):
    return [packed.new_empty((*packed.shape[:2], *part[:2])) for part in parts_of(numbers) if part.form != Form.VIEW]


@convolve_backward.register_fake
def _(grads, packed, weight, numbers):
    return packed.new_empty(packed.shape), weight.new_empty(weight.shape)


class Convolve(torch.autograd.Function):
    """`convolve` and its backward, with the parts that are views: a function can return views of its inputs."""

    @staticmethod
    def forward(packed: Tensor, weight: Tensor, parts: tuple[Part, ...]) -> tuple[Tensor, ...]:
        return with_views(convolve(packed, weight, numbers_of(parts)), packed, parts)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        *tensors, ctx.parts = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        return *convolve_backward(list(grads), *ctx.saved_tensors, numbers_of(ctx.parts)), None

    @staticmethod
    def vmap(info, in_dims, packed: Tensor, weight: Tensor, parts: tuple[Part, ...]):
        return fold_replicas(Convolve.apply, info, in_dims, packed, weight, parts)
