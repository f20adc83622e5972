"""Kimi Delta Attention as a layer: its formula from x to the output."""

import pytest
import torch
import torch.nn.functional as F
from formulas import convolved, delta_rule, of_length_one, plain_norm

from mixerlab.mixers.kda import KimiDeltaAttention


def layer_step_by_step(mixer, x):
    """The layer written out, `x` `[T, d_model]`."""
    q, k, v = (convolved(mixer, name, x) for name in "qkv")
    q, k = of_length_one(q), of_length_one(k)
    beta = (2 if mixer.allow_neg_eigval else 1) * (x @ mixer.b_proj.weight.T).sigmoid()
    slow = F.softplus(mixer.f_b_proj(mixer.f_a_proj(x)) + mixer.dt_bias).view_as(k)
    decay = (-mixer.A_log.exp()[:, None] * slow).exp()
    gate = mixer.g_b_proj(mixer.g_a_proj(x)).sigmoid().view_as(v)
    o = delta_rule(q / mixer.head_dim**0.5, k, v, decay, beta)
    return (plain_norm(o, mixer.norm.weight) * gate).flatten(1) @ mixer.o_proj.weight.T


@pytest.mark.parametrize("options", [{}, {"d_conv": 0, "allow_neg_eigval": True}])
def test_equals_the_formula(options):
    mixer = KimiDeltaAttention(16, num_heads=2, chunk_size=4, **options).double()
    for parameter in (mixer.norm.weight, mixer.b_proj.weight, mixer.f_b_proj.weight, mixer.dt_bias):
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 11, 16, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], layer_step_by_step(mixer, x[0]))
