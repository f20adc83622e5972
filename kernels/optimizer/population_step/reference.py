"""`update_moments` and `update_parameters` in PyTorch."""

import torch
from torch import Tensor


def update_moments(
    gradient: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    step: Tensor,
    active: Tensor,
    steps_taken: Tensor,
    matrices: int,
    momentum: float,
    nesterov: bool,
    betas: tuple[float, float],
    max_norm: float,
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
    parameters: Tensor,
    polar: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    step: Tensor,
    active: Tensor,
    lr: Tensor,
    column_scale: Tensor,
    column_decay: Tensor,
    schedule: Tensor,
    eps: float,
) -> None:
    column = step.long().clamp(max=schedule.shape[1]) - 1
    multiplier, decay, correction1, correction2 = schedule.index_select(1, column[None])
    rest = slice(polar.shape[1], None)
    adam = first_moment[:, rest] / correction1 / ((second_moment[:, rest] / correction2).sqrt() + eps)
    rate = (lr * multiplier)[:, None]
    updated = parameters - rate * column_scale * torch.cat((polar, adam), dim=1)
    updated -= rate * decay * column_decay * parameters
    parameters.copy_(torch.where(active[:, None] > 0, updated, parameters))
