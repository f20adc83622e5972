"""The selective scan in plain PyTorch: parallel inside a chunk of time, sequential over chunks."""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 8  # time steps that one chunk scans at once; a small chunk stays in the cache


def selective_scan_reference(
    u: Tensor, delta: Tensor, delta_bias: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor
) -> Tensor:
    """`kernels.selective_scan.selective_scan`, computed in float32, or in float64 for float64 inputs."""
    dtype = torch.promote_types(u.dtype, torch.float32)
    result_dtype = u.dtype
    u, delta, delta_bias, A, B, C, D, z = (x.to(dtype) for x in (u, delta, delta_bias, A, B, C, D, z))
    y, _ = _ChunkedScan.apply(u, F.softplus(delta + delta_bias), A, B, C)
    return ((y + D * u) * F.silu(z)).to(result_dtype)


def _scan_chunk(state: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk from the state before it: `(y [batch, L, channels], state after it [batch, channels, N])`.

    Recursive doubling (Hillis and Steele 1986): after the pass with distance s, row t holds the recurrence
    run over its last 2s inputs. Only products of decays in (0, 1] occur, so nothing overflows.
    """
    decay = torch.exp(delta[..., None] * A)  # [batch, L, channels, N]
    states = (delta * u)[..., None] * B[:, :, None, :]
    states = torch.cat((states[:, :1] + decay[:, :1] * state[:, None], states[:, 1:]), dim=1)
    distance = 1
    while distance < u.shape[1]:
        reached = states[:, distance:] + decay[:, distance:] * states[:, :-distance]
        states = torch.cat((states[:, :distance], reached), dim=1)
        decay = torch.cat((decay[:, :distance], decay[:, distance:] * decay[:, :-distance]), dim=1)
        distance *= 2
    return (states * C[:, :, None, :]).sum(-1), states[:, -1]


class _ChunkedScan(torch.autograd.Function):
    """Keeps the state at the start of each chunk and scans the chunk again in the backward pass.

    Plain autograd would keep a dozen tensors of [batch, T, channels, N].
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        state = u.new_zeros(u.shape[0], u.shape[2], A.shape[1])
        outputs, starts = [], []
        for chunk in zip(*(x.split(CHUNK, dim=1) for x in (u, delta, B, C)), strict=True):
            starts.append(state)
            u_chunk, delta_chunk, B_chunk, C_chunk = chunk
            y, state = _scan_chunk(state, u_chunk, delta_chunk, A, B_chunk, C_chunk)
            outputs.append(y)
        return torch.cat(outputs, dim=1), torch.stack(starts, dim=1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, starts = output
        ctx.mark_non_differentiable(starts)
        ctx.save_for_backward(*inputs, starts)

    @staticmethod
    def backward(ctx, grad_y: Tensor, _):
        u, delta, A, B, C, starts = ctx.saved_tensors
        grad_state = torch.zeros_like(starts[:, 0])
        grad_A = torch.zeros_like(A)
        grads = []
        chunks = list(zip(*(x.split(CHUNK, dim=1) for x in (u, delta, B, C, grad_y)), strict=True))
        for index in reversed(range(len(chunks))):
            u_chunk, delta_chunk, B_chunk, C_chunk, grad_chunk = chunks[index]
            _, pullback = torch.func.vjp(_scan_chunk, starts[:, index], u_chunk, delta_chunk, A, B_chunk, C_chunk)
            grad_state, grad_u, grad_delta, grad_A_chunk, grad_B, grad_C = pullback((grad_chunk, grad_state))
            grad_A = grad_A + grad_A_chunk
            grads.append((grad_u, grad_delta, grad_B, grad_C))
        grad_u, grad_delta, grad_B, grad_C = (torch.cat(g, dim=1) for g in zip(*reversed(grads), strict=True))
        return grad_u, grad_delta, grad_A, grad_B, grad_C
