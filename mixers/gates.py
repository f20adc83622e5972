"""Initial values of the decays of a gated recurrence (`kernels.fused.gates`)."""

import torch
from torch import nn

from mixerlab.mixers.base import keep_initial_values

DECAY_RATES = (1.0, 16.0)  # exp(A_log) at the start, uniform in this range (Mamba-2)
TIME_STEPS = (1e-3, 1e-1)  # softplus(dt_bias) at the start, log-uniform in this range (Mamba-2)


def initial_decays(heads: int, channels: int) -> tuple[nn.Parameter, nn.Parameter]:
    """`A_log` `[heads]`, which is `log_rate` of `gates`, and its `decay_bias` `[channels]`, as Mamba-2 draws them."""
    rates = nn.Parameter(torch.empty(heads).uniform_(*DECAY_RATES).log())
    low, high = (torch.tensor(step).log().item() for step in TIME_STEPS)
    step = torch.empty(channels).uniform_(low, high).exp()
    biases = nn.Parameter(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
    for parameter in (rates, biases):
        keep_initial_values(parameter)
    return rates, biases
