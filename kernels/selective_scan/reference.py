"""The selective scan in plain PyTorch, step by step."""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 8  # steps between two states that the backward pass starts from


def selective_scan_reference(
    u: Tensor, delta: Tensor, delta_bias: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor
) -> Tensor:
    """`kernels.selective_scan.selective_scan`, computed in float32, or in float64 for float64 inputs."""
    dtype = torch.promote_types(u.dtype, torch.float32)
    result_dtype = u.dtype
    u, delta, delta_bias, A, B, C, D, z = (x.to(dtype) for x in (u, delta, delta_bias, A, B, C, D, z))
    y, _ = _Scan.apply(u, F.softplus(delta + delta_bias), A, B, C)
    return ((y + D * u) * F.silu(z)).to(result_dtype)


def _step(state: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """The decay of one step `[batch, channels, N]`, and the state after it; `u`, `delta` and `B` are of that step."""
    decay = torch.exp(delta[..., None] * A)
    return decay, decay * state + (delta * u)[..., None] * B[:, None, :]


class _Scan(torch.autograd.Function):
    """One step after the other, each on what fits the cache.

    Keeps the state before each chunk of steps and computes the others again in the backward pass; plain autograd
    would keep a dozen tensors of [batch, T, channels, N].
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        state = u.new_zeros(u.shape[0], u.shape[2], A.shape[1])
        outputs, starts = [], []
        for t in range(u.shape[1]):
            if t % CHUNK == 0:
                starts.append(state)
            _, state = _step(state, u[:, t], delta[:, t], A, B[:, t])
            outputs.append((state * C[:, t, None, :]).sum(-1))  # a product by `@` would obey autocast
        return torch.stack(outputs, dim=1), torch.stack(starts, dim=1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, starts = output
        # Differentiable too: the backward pass starts from them, and so they carry a part of second derivatives.
        ctx.save_for_backward(*inputs, starts)

    @staticmethod
    def backward(ctx, grad_y: Tensor, grad_starts: Tensor):
        u, delta, A, B, C, starts = ctx.saved_tensors
        grad_state = torch.zeros_like(starts[:, 0])
        grad_A = torch.zeros_like(A)
        grads = []
        for start in reversed(range(0, u.shape[1], CHUNK)):
            times = range(start, min(start + CHUNK, u.shape[1]))
            states, decays = [starts[:, start // CHUNK]], []
            for t in times:
                decay, state = _step(states[-1], u[:, t], delta[:, t], A, B[:, t])
                states.append(state)
                decays.append(decay)
            for t, before, after, decay in zip(
                reversed(times), states[-2::-1], states[:0:-1], reversed(decays), strict=True
            ):
                grad_state = grad_state + grad_y[:, t, :, None] * C[:, t, None, :]
                grad_C = (grad_y[:, t, :, None] * after).sum(1)
                grad_B = ((delta[:, t] * u[:, t])[..., None] * grad_state).sum(1)
                grad_x = (grad_state * B[:, t, None, :]).sum(-1)  # of delta u
                grad_state = grad_state * decay  # of the state before the step
                grad_exponent = grad_state * before
                grad_A = grad_A + (grad_exponent * delta[:, t, :, None]).sum(0)
                grad_delta = grad_x * u[:, t] + (grad_exponent * A).sum(-1)
                grads.append((grad_x * delta[:, t], grad_delta, grad_B, grad_C))
            grad_state = grad_state + grad_starts[:, start // CHUNK]
        grad_u, grad_delta, grad_B, grad_C = (torch.stack(g, dim=1) for g in zip(*reversed(grads), strict=True))
        return grad_u, grad_delta, grad_A, grad_B, grad_C
