"""The mesa layer in PyTorch, chunk by chunk: any device, float32 or float64, vmap, autograd.

Within a chunk, let `b_i` be the log decay summed from its first position to i, and `H`, `G` (`[D, D]`, keys by keys and
keys by values) the states before it. The product of a row `x_i` with its own `H_i` is

    x_i H_i = exp(b_i) x_i H + sum_{j <= i} exp(b_i - b_j) beta_j (x_i.k_j) k_j

and likewise for `G_i`, with `G` and `v_j`. These are matrix products of whole chunks, for all chunks at once. Only the
states go from chunk to chunk.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import without_autocast
from mixerlab.kernels.common.chunked import decay_between, from_chunks, to_chunks


class Systems(NamedTuple):
    """The linear systems of all positions, `[B, H, N, ...]`: what `x_i -> x_i H_i` and `x_i -> x_i G_i` need."""

    keys: Tensor  # [..., C, D]
    weights: Tensor  # [..., C, C]: exp(b_i - b_j) beta_j for j <= i
    from_start: Tensor  # [..., C, 1]: exp(b_i)
    ridge: Tensor  # [B or 1, H, 1, 1, D]
    key_states: Tensor  # [..., D, D]: H before each chunk

    def read(self, x: Tensor, values: Tensor, states: Tensor) -> Tensor:
        """Row i of `x` times the state of position i: `H_i` for keys as `values`, `G_i` for values."""
        return (x * self.from_start) @ states + ((x @ self.keys.mT) * self.weights) @ values

    def apply(self, x: Tensor) -> Tensor:
        """`x_i (H_i + diag(ridge))`."""
        return self.read(x, self.keys, self.key_states) + self.ridge * x


def conjugate_gradients(systems: Systems, right: Tensor, iterations: int) -> Tensor:
    """Solves `x_i (H_i + diag(ridge)) = right_i` at every position, from zero, in `iterations` steps."""
    tiny = torch.finfo(torch.float32).tiny  # so that 0 / 0 is 0 after a row has converged
    # Gradients of positions long before the loss may be so small that their squares underflow to zero.
    scale = right.abs().amax(-1, keepdim=True).clamp_min(tiny)
    right = right / scale
    solution, residual, direction = torch.zeros_like(right), right, right
    norm = residual.square().sum(-1, keepdim=True)
    for _ in range(iterations):
        image = systems.apply(direction)
        step = norm / (direction * image).sum(-1, keepdim=True).clamp_min(tiny)
        solution = solution + step * direction
        residual = residual - step * image
        last, norm = norm, residual.square().sum(-1, keepdim=True)
        direction = residual + norm / last.clamp_min(tiny) * direction
    return scale * solution


class _SolveAdjoint(torch.autograd.Function):
    """Returns zero. Its backward maps the gradient of the solution to that of the residual `q - A x`.

    With x fixed at the solution, `x + _SolveAdjoint(q - A x)` has the value x, and by the implicit function theorem the
    derivative of `A^{-1} q` with respect to `q` and to everything that `A` is made of.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(residual: Tensor, iterations: int, *systems: Tensor) -> Tensor:
        return torch.zeros_like(residual)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.iterations, *systems = inputs
        ctx.save_for_backward(*systems)

    @staticmethod
    def backward(ctx, grad: Tensor):
        systems = ctx.saved_tensors
        solve = _Adjoint.forward if torch.compiler.is_compiling() else _Adjoint.apply
        return solve(grad, ctx.iterations, *systems), None, *(None for _ in systems)


class _Adjoint(torch.autograd.Function):
    """`A^{-1} grad`. A derivative of it would lack what comes through A, so there is none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, iterations: int, *systems: Tensor) -> Tensor:
        return conjugate_gradients(Systems(*systems), grad, iterations)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad: Tensor):
        raise RuntimeError("mesa cannot be differentiated twice")


def build_systems(
    k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, ridge: Tensor, state: Tensor | None = None
) -> tuple[Systems, Tensor, Tensor]:
    """The systems, `G` before each chunk, and the last state, from inputs `[B, H, N, C, ...]` and a ridge `[H, D]`.

    A state is `H` and `G` side by side, `[B, H, D, 2 D]`; the first is zero unless it is given.
    """
    cumulative = log_decay.cumsum(-1)
    to_end = (cumulative[..., -1:] - cumulative).exp() * beta
    added = (k * to_end[..., None]).mT @ torch.cat((k, v), dim=-1)
    chunk_decay = cumulative[..., -1].exp()[..., None, None]
    state, states = torch.zeros_like(added[:, :, 0]) if state is None else state, []
    for n in range(added.shape[2]):
        states.append(state)
        state = chunk_decay[:, :, n] * state + added[:, :, n]
    key_states, value_states = torch.stack(states, dim=2).split(k.shape[-1], dim=-1)
    weights = decay_between(cumulative) * beta[..., None, :]
    from_start = cumulative.exp()[..., None]
    return Systems(k, weights, from_start, ridge[None, :, None, None, :], key_states), value_states, state


@without_autocast
def mesa_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    ridge: Tensor,
    iterations: int,
    chunk_size: int,
    memory: Tensor | None = None,
) -> Tensor:
    """See `kernels.mesa.mesa`.

    With `memory`, `H` and `G` side by side `[B, H, D, 2 D]` in float32 or float64, it goes on from there, and `memory`
    becomes the state behind the last token; without a gradient then.
    """
    length, out_dtype = q.shape[1], v.dtype
    dtype = torch.promote_types(q.dtype, torch.float32)
    chunk_size = min(chunk_size, length)
    q, k, v, log_decay, beta = (to_chunks(x.to(dtype), chunk_size) for x in (q, k, v, log_decay, beta))
    systems, value_states, state = build_systems(k, v, log_decay, beta, ridge.to(dtype), memory)

    fixed = Systems(*(part.detach() for part in systems))
    x = conjugate_gradients(fixed, q.detach(), iterations)
    x = x + _SolveAdjoint.apply(q - systems.apply(x), iterations, *systems)
    o = from_chunks(systems.read(x, v, value_states), length).to(out_dtype)
    if memory is not None:
        memory.copy_(state)
    return o
