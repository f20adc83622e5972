"""The Triton gates as PyTorch operators."""

import torch
import triton
from torch import Tensor

from mixerlab.kernels.common.addressing import unit_stride
from mixerlab.kernels.common.device import processors
from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.fused.gates.triton_kernels import gates_backward_kernel, gates_forward_kernel

TILE, WARPS = 1024, 4
BACKWARD_PROGRAMS = 4  # for each multiprocessor, of all groups together


@operator("gates")
def gates(
    decay_logit, beta_logit, decay_bias, log_rate: Tensor | None, beta_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`gates` of logits `[groups, N, C]` and `[groups, N, H]`, and parameters: log decay and beta in float32."""
    inputs = _readable(decay_logit, beta_logit, decay_bias, log_rate, beta_bias)
    groups, rows, _ = decay_logit.shape
    results = _results(*inputs)
    tile = _tile(decay_logit, beta_logit)
    if rows:
        gates_forward_kernel[triton.cdiv(rows, tile["ROWS"]), groups](
            *inputs, *results, rows, *_strides(inputs), **tile
        )
    return results


@gates.register_fake
def _results(decay_logit, beta_logit, decay_bias, log_rate, beta_bias):
    return tuple(x.new_empty(x.shape, dtype=torch.float32) for x in (decay_logit, beta_logit))


@operator("gates_backward")
def gates_backward(
    d_log_decay, d_beta, decay_logit, beta_logit, decay_bias, log_rate: Tensor | None, beta_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the logits, and in float32 those of decay bias, log rate and beta bias `[groups, 2 C + H]`."""
    inputs = _readable(decay_logit, beta_logit, decay_bias, log_rate, beta_bias)
    groups, rows, channels = decay_logit.shape
    tile = _tile(decay_logit, beta_logit)
    parts = min(triton.cdiv(rows, tile["ROWS"]), max(1, BACKWARD_PROGRAMS * processors(decay_logit.device) // groups))
    sums = decay_logit.new_empty((groups, parts, 2 * channels + beta_logit.shape[2]), dtype=torch.float32)
    of_decay, of_beta = (x.new_empty(x.shape) for x in (decay_logit, beta_logit))
    if rows:
        gates_backward_kernel[parts, groups](
            *(d_log_decay.contiguous(), d_beta.contiguous(), *inputs, of_decay, of_beta, sums),
            *(rows, *_strides(inputs)),
            **tile,
        )
    return of_decay, of_beta, sum_parts(sums, torch.float32)


@gates_backward.register_fake
def _(d_log_decay, d_beta, decay_logit, beta_logit, decay_bias, log_rate, beta_bias):
    groups, channels = decay_bias.shape
    of_decay, of_beta = (x.new_empty(x.shape) for x in (decay_logit, beta_logit))
    sums = decay_bias.new_empty(groups, 2 * channels + beta_logit.shape[2], dtype=torch.float32)
    return of_decay, of_beta, sums


def _readable(*tensors: Tensor | None) -> list[Tensor | None]:
    return [x if x is None else unit_stride(x) for x in tensors]


def _strides(inputs: list[Tensor | None]) -> list[int]:
    """Of a group and a row of both logits, then of a group of each parameter."""
    steps = [(0, 0) if x is None else x.stride()[:2] for x in inputs]
    return [*steps[0], *steps[1], *(of_group for of_group, _ in steps[2:])]


def _tile(decay_logit: Tensor, beta_logit: Tensor) -> dict[str, int]:
    channels, heads = decay_logit.shape[2], beta_logit.shape[2]
    block_c, block_h = (triton.next_power_of_2(width) for width in (channels, heads))
    rows = max(1, TILE // max(block_c, block_h))
    return {"C": channels, "H": heads, "BLOCK_C": block_c, "BLOCK_H": block_h, "ROWS": rows, "num_warps": WARPS}


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _gradients(ctx, d_log_decay, d_beta):
    _, beta_logit, *parameters = saved = ctx.saved_tensors
    of_decay, of_beta, sums = gates_backward(d_log_decay, d_beta, *saved)
    channels, heads = parameters[0].shape[-1], beta_logit.shape[-1]
    parts = zip(parameters, sums.split((channels, channels, heads), dim=-1), strict=True)
    return of_decay, of_beta, *(None if x is None else y.to(x.dtype) for x, y in parts)


register_gradient(gates, _gradients, save=_save)
