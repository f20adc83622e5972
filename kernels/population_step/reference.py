"""`population_step` in PyTorch."""

import torch
from torch import Tensor


def population_step_reference(
    parameters: Tensor,
    gradient: Tensor,
    polar: Tensor,
    first_moment: Tensor,
    second_moment: Tensor,
    lr: Tensor,
    column_scale: Tensor,
    decay: Tensor,
    decayed: int,
    clip: Tensor,
    active: Tensor,
    betas: tuple[float, float],
    bias_correction: Tensor,
    eps: float,
) -> None:
    rest = slice(polar.shape[1], None)
    gradient = gradient[:, rest] * clip[:, None]
    first = first_moment[:, rest].lerp_(gradient, 1 - betas[0]) / bias_correction[0]
    second = second_moment[:, rest].lerp_(gradient.square(), 1 - betas[1]) / bias_correction[1]
    direction = torch.cat((polar, first / (second.sqrt() + eps)), dim=1)
    updated = parameters - lr[:, None] * column_scale * direction
    updated[:, :decayed] -= lr[:, None] * decay * parameters[:, :decayed]
    parameters.copy_(torch.where(active[:, None] > 0, updated, parameters))
