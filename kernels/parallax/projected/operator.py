"""`projected_parallax` as PyTorch operators, whose backward writes the gradient of the projection as one tensor.

`projected` multiplies x by the weights; `looked_up` looks up rows of a table of products. Every replica has its own x,
weights and frequencies: they are groups, the leading axis of all tensors.
"""

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import register
from mixerlab.kernels.fused.embedding.operator import look_up_backward
from mixerlab.kernels.fused.linear.operator import weight_gradient
from mixerlab.kernels.parallax.projected.triton_look_up import run_look_up
from mixerlab.kernels.parallax.projected.triton_projection import packed_width, run_projection
from mixerlab.kernels.parallax.triton_launch import Norms, run_backward, run_forward, saved_like
from mixerlab.kernels.parallax.triton_tiles import for_copy_engine


@torch.library.custom_op("mixerlab::projected_parallax", mutates_args=())
def projected(
    x: Tensor,
    weight: Tensor,
    inverse_frequency: Tensor,
    gains: Tensor | None,
    eps: float,
    heads: int,
    rotate_rho: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output `[groups, B, T, H, D]` for x `[groups, B, T, K]`, and what the backward needs.

    `gains` are `[groups, 3, D]`, or None.
    """
    groups, batch, length, width = x.shape
    rows = x.reshape(groups, batch * length, width)
    packed = run_projection(rows, weight, inverse_frequency, gains, eps, length, heads, rotate_rho)
    return _attend(packed.view(groups, batch, length, -1), heads, 2 * inverse_frequency.shape[1])


@torch.library.custom_op("mixerlab::looked_up_parallax", mutates_args=())
def looked_up(
    tokens: Tensor, table: Tensor, inverse_frequency: Tensor, heads: int, rotate_rho: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `projected`, for rows `tokens` `[groups, B, T]` of a table of rounded products `[groups, V, 4 H D]`."""
    packed = run_look_up(tokens.flatten(1), table, inverse_frequency, tokens.shape[2], heads, rotate_rho)
    return _attend(packed.view(*tokens.shape, -1), heads, 2 * inverse_frequency.shape[1])


def _attend(packed: Tensor, heads: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    groups = packed.shape[0]
    packed = packed.flatten(0, 1)
    q, k, v, rho, *_ = _parts(packed, heads, head_dim)
    o, mean_v, cov, lse, weight_at_0 = run_forward(q, rho, k, v, head_dim**-0.5, None)
    return o.unflatten(0, (groups, -1)), packed, mean_v, cov, lse, weight_at_0


@projected.register_fake
def _(x, weight, inverse_frequency, gains, eps, heads, rotate_rho):
    packed = x.new_empty(*x.shape[:3], packed_width(weight, gains))
    return _attended_like(packed, heads, 2 * inverse_frequency.shape[1])


@looked_up.register_fake
def _(tokens, table, inverse_frequency, heads, rotate_rho):
    return _attended_like(table.new_empty(*tokens.shape, table.shape[2]), heads, 2 * inverse_frequency.shape[1])


def _attended_like(packed: Tensor, heads: int, head_dim: int) -> tuple[Tensor, ...]:
    groups = packed.shape[0]
    packed = packed.flatten(0, 1)
    q = _parts(packed, heads, head_dim)[0]
    return q.new_empty(q.shape).unflatten(0, (groups, -1)), packed, *saved_like(q)


@torch.library.custom_op("mixerlab::projected_parallax_backward", mutates_args=())
def projected_backward(
    d_o: Tensor,
    inverse_frequency: Tensor,
    gains: Tensor | None,
    packed: Tensor,
    mean_v: Tensor,
    cov: Tensor,
    lse: Tensor,
    weight_at_0: Tensor,
    eps: float,
    heads: int,
    rotate_rho: bool,
) -> list[Tensor]:
    """The gradient of the projection `[groups, B T, 4 H D]`, and that of `gains` if there are any."""
    head_dim = d_o.shape[-1]
    q, k, v, rho, *unnormed = _parts(packed, heads, head_dim)
    d_packed = packed.new_empty(*packed.shape[:2], 4 * heads * head_dim)
    d_q, d_k, d_v, d_rho = _parts(d_packed, heads, head_dim)
    saved = mean_v, cov, lse, weight_at_0
    d_gains = run_backward(
        (d_q, d_rho, d_k, d_v),
        *(for_copy_engine(d_o.flatten(0, 1)), q, rho, k, v),
        *saved,
        *(head_dim**-0.5, None),
        frequency=inverse_frequency.contiguous(),
        rotate_rho=rotate_rho,
        norms=None if gains is None else Norms(unnormed[0], unnormed[1], unnormed[2], gains, eps),
    )
    d_packed = d_packed.view(d_o.shape[0], -1, d_packed.shape[-1])
    return [d_packed] if d_gains is None else [d_packed, d_gains]


@projected_backward.register_fake
def _(d_o, inverse_frequency, gains, packed, mean_v, cov, lse, weight_at_0, eps, heads, rotate_rho):
    rows = packed.shape[0] // d_o.shape[0] * packed.shape[1]
    d_packed = packed.new_empty(d_o.shape[0], rows, 4 * d_o.shape[3:].numel())
    return [d_packed] if gains is None else [d_packed, gains.new_empty(gains.shape)]


def _parts(packed: Tensor, heads: int, head_dim: int) -> tuple[Tensor, ...]:
    """q, k, v and rho, and then what q, k and rho were before their norms: `[B, T, H, D]`, views of `packed`."""
    return packed.unflatten(-1, (-1, heads, head_dim)).unbind(2)


def _gradients(ctx, d_o, *_):
    x, weight, *saved = ctx.saved_tensors
    of_x, of_weight, *_ = ctx.needs_input_grad
    grad, *d_gains = projected_backward(d_o, *saved, *ctx.options)
    d_x = torch.bmm(grad, weight).view(x.shape) if of_x else None
    d_weight = weight_gradient(grad, x.reshape(x.shape[0], -1, x.shape[-1])) if of_weight else None
    return d_x, d_weight, None, d_gains[0] if d_gains else None


def _gradients_of_table(ctx, d_o, *_):
    tokens, table, frequency, *saved = ctx.saved_tensors
    (grad,) = projected_backward(d_o, frequency, None, *saved, 0.0, *ctx.options)
    return None, look_up_backward(grad, tokens.flatten(1), table), None


register(projected, gradients=_gradients, options=3)
register(looked_up, gradients=_gradients_of_table, options=2)
register(projected_backward)
