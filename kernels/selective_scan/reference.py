"""The selective scan in PyTorch, step by step."""

import torch
import torch.nn.functional as F
from torch import Tensor

SAVE_EVERY = 8  # steps between two states that are kept for the backward


def selective_scan_reference(
    u: Tensor, delta: Tensor, delta_bias: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor
) -> Tensor:
    """`kernels.selective_scan.selective_scan`, computed in float32, or in float64 for float64 inputs."""
    dtype = torch.promote_types(u.dtype, torch.float32)
    result_dtype = u.dtype
    u, delta, delta_bias, A, B, C, D, z = (x.to(dtype) for x in (u, delta, delta_bias, A, B, C, D, z))
    y, _ = _Scan.apply(u, F.softplus(delta + delta_bias), A, B, C)
    return ((y + D * u) * F.silu(z)).to(result_dtype)


def selective_scan_steps(
    u: Tensor, delta: Tensor, delta_bias: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, z: Tensor, state: Tensor
) -> Tensor:
    """The same from a `state` `[batch, channels, N]` on, which becomes the one behind the last token; no gradient.

    The state is float32 or float64, as the sums are.
    """
    result_dtype = u.dtype
    u, delta, delta_bias, A, B, C, D, z = (x.to(state.dtype) for x in (u, delta, delta_bias, A, B, C, D, z))
    delta = F.softplus(delta + delta_bias)
    outputs = []
    for t in range(u.shape[1]):
        state.copy_(_step(state, u[:, t], delta[:, t], A, B[:, t])[1])
        outputs.append((state * C[:, t, None, :]).sum(-1))
    return ((torch.stack(outputs, dim=1) + D * u) * F.silu(z)).to(result_dtype)


def _step(state: Tensor, u: Tensor, delta: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """The decay `[batch, channels, N]` of one step, whose `u`, `delta` and `B` are given, and the state after it."""
    decay = torch.exp(delta[..., None] * A)
    return decay, decay * state + (delta * u)[..., None] * B[:, None, :]


class _Scan(torch.autograd.Function):
    """One step after the other, on tensors small enough for the cache.

    It keeps the state every SAVE_EVERY steps, and the backward computes the others again. Autograd would keep a dozen
    tensors of [batch, T, channels, N].
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
        state = u.new_zeros(u.shape[0], u.shape[2], A.shape[1])
        outputs, starts = [], []
        for t in range(u.shape[1]):
            if t % SAVE_EVERY == 0:
                starts.append(state)
            _, state = _step(state, u[:, t], delta[:, t], A, B[:, t])
            outputs.append((state * C[:, t, None, :]).sum(-1))  # autocast would change a product by `@`
        return torch.stack(outputs, dim=1), torch.stack(starts, dim=1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, starts = output
        # These are differentiable: the backward starts from them, so a part of a second derivative passes through them.
        ctx.save_for_backward(*inputs, starts)

    @staticmethod
    def backward(ctx, grad_y: Tensor, grad_starts: Tensor):
        u, delta, A, B, C, starts = ctx.saved_tensors
        grad_state = torch.zeros_like(starts[:, 0])
        grad_A = torch.zeros_like(A)
        grads = []
        for start in reversed(range(0, u.shape[1], SAVE_EVERY)):
            times = range(start, min(start + SAVE_EVERY, u.shape[1]))
            states, decays = [starts[:, start // SAVE_EVERY]], []
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
            grad_state = grad_state + grad_starts[:, start // SAVE_EVERY]
        grad_u, grad_delta, grad_B, grad_C = (torch.stack(g, dim=1) for g in zip(*reversed(grads), strict=True))
        return grad_u, grad_delta, grad_A, grad_B, grad_C
