"""Initial values of the decays of a gated recurrence (`kernels.fused.gates`)."""

import math

import torch
from torch import Tensor, nn

DECAY_RATES = (1.0, 16.0)  # exp(A_log) at the start, uniform in this range (Mamba-2)
TIME_STEPS = (1e-3, 1e-1)  # softplus(dt_bias) at the start, log-uniform in this range (Mamba and Mamba-2)


def initial_decays(heads: int, channels: int) -> tuple[nn.Parameter, nn.Parameter]:
    """`A_log` `[heads]`, which is `log_rate` of `gates`, and its `decay_bias` `[channels]`, as Mamba-2 draws them."""
    rates = torch.empty(heads).uniform_(*DECAY_RATES).log()
    return nn.Parameter(rates), nn.Parameter(time_step_bias(channels, *TIME_STEPS))


def time_step_bias(channels: int, least: float, largest: float) -> Tensor:
    """A bias `[channels]` whose softplus, a time step, is log-uniform in this range."""
    step = torch.empty(channels).uniform_(math.log(least), math.log(largest)).exp()
    return step + torch.log(-torch.expm1(-step))  # the inverse of softplus
