"""The solved probe as a PyTorch operator, some queries at a time."""

from collections.abc import Iterator

import torch
from torch import Tensor

from mixerlab.kernels.common.registration import operator, register_gradient
from mixerlab.kernels.local_linear.reference import (
    Solver,
    Systems,
    build_systems,
    conjugate_gradients,
    gradients,
    solve,
)

CHUNK_SIZE = 128  # queries whose weights are held at once


@operator("solved_probe")
def forward(q, k, scale: float, ridge: float, relative: bool, iterations: int, triton: bool):
    """See `kernels.local_linear.solved_probe`."""
    q, k = _wide(q, k)
    probes = [
        solve(q[:, :, rows], systems, iterations, _solver(triton))
        for rows, systems in _systems(q, k, scale, ridge, relative)
    ]
    return torch.cat(probes, dim=2).transpose(1, 2).contiguous()


@forward.register_fake
def _(q, k, scale, ridge, relative, iterations, triton):
    return q.new_empty(q.shape, dtype=torch.promote_types(q.dtype, torch.float32))


@operator("solved_probe_backward", like="q k", refusal="solved_probe cannot be differentiated twice")
def backward(grad, q, k, probe, scale: float, ridge: float, relative: bool, iterations: int, triton: bool):
    """The gradients of q and k."""
    wide_q, wide_k, grad, probe = _wide(q, k, grad, probe)
    d_q, d_k = [], torch.zeros_like(wide_k)
    for rows, systems in _systems(wide_q, wide_k, scale, ridge, relative):
        at = grad[:, :, rows], wide_q[:, :, rows], probe[:, :, rows]
        d_rows, d_keys = gradients(*at, systems, scale, relative, iterations, _solver(triton))
        d_q.append(d_rows)
        d_k[:, :, : rows.stop] += d_keys
    return _narrow(torch.cat(d_q, dim=2), q.dtype), _narrow(d_k, k.dtype)


def _solver(triton: bool) -> Solver:
    if not triton:
        return conjugate_gradients
    from mixerlab.kernels.local_linear import triton_kernels  # here, because Triton is optional

    return triton_kernels.conjugate_gradients


def _wide(*tensors: Tensor) -> list[Tensor]:
    """`[B, T, H, D]` to `[B, H, T, D]`, at least float32."""
    return [x.transpose(1, 2).to(torch.promote_types(x.dtype, torch.float32)).contiguous() for x in tensors]


def _narrow(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The inverse of `_wide`."""
    return x.transpose(1, 2).to(dtype).contiguous()


def _systems(q: Tensor, k: Tensor, scale: float, ridge: float, relative: bool) -> Iterator[tuple[slice, Systems]]:
    """Chunk by chunk of the queries, the rows and their systems over the keys up to the last of them."""
    for start in range(0, q.shape[2], CHUNK_SIZE):
        rows = slice(start, min(start + CHUNK_SIZE, q.shape[2]))
        size = rows.stop - start
        hidden = torch.ones(size, rows.stop, dtype=torch.bool, device=q.device).triu(start + 1)
        yield rows, build_systems(q[:, :, rows], k[:, :, : rows.stop], hidden, scale, ridge, relative)


def _save(ctx, inputs, output):
    q, k, *ctx.options = inputs
    ctx.save_for_backward(q, k, output)


register_gradient(forward, backward, save=_save)
