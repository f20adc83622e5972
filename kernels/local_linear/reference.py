"""Local linear attention in PyTorch: the systems of some queries, their solution and its gradient."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import without_autocast


class Systems(NamedTuple):
    """`Var_p(k) + ridge` of some queries: `[B, H, C, ...]`, over S keys."""

    keys: Tensor  # [..., S, D]
    weights: Tensor  # [..., C, S]: p
    ridge: Tensor  # [..., C, 1]

    def apply(self, x: Tensor) -> Tensor:
        t = x @ self.keys.mT
        off = t - (self.weights * t).sum(-1, keepdim=True)
        return (self.weights * off) @ self.keys + self.ridge * x


Solver = Callable[[Systems, Tensor, int], Tensor]  # (systems, right-hand sides, iterations) to solutions


@without_autocast
def build_systems(q: Tensor, k: Tensor, hidden: Tensor, scale: float, ridge: float, relative: bool) -> Systems:
    """Of queries `[B, H, C, D]` over keys `[B, H, S, D]`, but for those that are `hidden`, bool `[..., C, S]`."""
    logits = (scale * q @ k.mT).masked_fill_(hidden, -torch.inf)
    total = logits.logsumexp(-1, keepdim=True)
    return Systems(k, (logits - total).exp(), torch.full_like(total, ridge) if relative else ridge * (-total).exp())


def conjugate_gradients(systems: Systems, right: Tensor, iterations: int) -> Tensor:
    """Solves each system from zero, `[B, H, C, D]`."""
    tiny = torch.finfo(torch.float32).tiny  # so that 0 / 0 is 0 after a row has converged
    scale = right.abs().amax(-1, keepdim=True).clamp_min(tiny)  # squares of small gradients would underflow
    residual = direction = right / scale
    solution, norm = torch.zeros_like(right), residual.square().sum(-1, keepdim=True)
    longest = 1 / systems.ridge.clamp_min(tiny)  # a step, but for rounding, which matters if the system is singular
    for _ in range(iterations):
        image = systems.apply(direction)
        step = (norm / (direction * image).sum(-1, keepdim=True).clamp_min(tiny)).minimum(longest)
        solution = torch.addcmul(solution, step, direction)
        residual = torch.addcmul(residual, step, image, value=-1)
        last, norm = norm, residual.square().sum(-1, keepdim=True)
        direction = torch.addcmul(residual, norm / last.clamp_min(tiny), direction)
    return scale * solution


@without_autocast
def solve(q: Tensor, systems: Systems, iterations: int, solver: Solver = conjugate_gradients) -> Tensor:
    """The probes `[B, H, C, D]` of queries."""
    return solver(systems, systems.weights @ systems.keys - q, iterations)


@without_autocast
def gradients(
    grad: Tensor,
    q: Tensor,
    probe: Tensor,
    systems: Systems,
    scale: float,
    relative: bool,
    iterations: int,
    solver: Solver = conjugate_gradients,
) -> tuple[Tensor, Tensor]:
    """Those of the queries `[B, H, C, D]` and keys `[B, H, S, D]`, from that of the probe x.

    With y the solution of the adjoint system, they are the derivatives of `y.(mean_p(k) - q - (Var_p(k) + ridge) x)`
    for x and y that stay as they are. In a = y.k and b = x.k it is
    `E[a] - y.q - E[a b] + E[a] E[b] - ridge y.x`.
    """
    k, p, ridge = systems
    y = solver(systems, grad, iterations)
    a, b = y @ k.mT, probe @ k.mT
    a_off, b_off = a - (p * a).sum(-1, keepdim=True), b - (p * b).sum(-1, keepdim=True)
    d_a, d_b = p * (1 - b_off), -p * a_off
    value = a - a_off * b_off  # whose derivative in p is that of the expression, but for a constant
    d_logit = p * (value - (p * value).sum(-1, keepdim=True))
    if not relative:  # the ridge is divided by the sum of the weights
        d_logit = d_logit + p * (ridge * (y * probe).sum(-1, keepdim=True))
    d_logit = scale * d_logit
    d_k = torch.cat((d_logit, d_a, d_b), dim=-2).mT @ torch.cat((q, y, probe), dim=-2)
    return d_logit @ k - y, d_k
