"""`update_moments` and `update_parameters` in PyTorch."""

import torch
from torch import Tensor


def update_moments(
    gradient, first_moment, second_moment, step, active, steps_taken, matrices, momentum, nesterov, betas, max_norm
) -> Tensor:
    norm = gradient.norm(dim=1)
    active *= norm.isfinite()
    steps_taken += active
    step += 1
    gradient = gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0)[:, None]
    muon, adam = gradient[:, :matrices], gradient[:, matrices:]
    velocity = first_moment[:, :matrices].lerp_(muon, 1 - momentum)
    first_moment[:, matrices:].lerp_(adam, 1 - betas[0])
    second_moment[:, matrices:].lerp_(adam.square(), 1 - betas[1])
    return muon.lerp(velocity, momentum) if nesterov else velocity


def update_parameters(
    parameters, polar, first_moment, second_moment, step, active, lr, column_scale, column_decay, schedule, eps
) -> None:
    column = step.long().clamp(max=schedule.shape[1]) - 1
    multiplier, decay, correction1, correction2 = schedule.index_select(1, column[None])
    rest = slice(polar.shape[1], None)
    adam = first_moment[:, rest] / correction1 / ((second_moment[:, rest] / correction2).sqrt() + eps)
    rate = (lr * multiplier)[:, None]
    updated = parameters - rate * column_scale * torch.cat((polar, adam), dim=1)
    updated -= rate * decay * column_decay * parameters
    parameters.copy_(torch.where(active[:, None] > 0, updated, parameters))
