"""Kimi Delta Attention as a layer: its formula from x to the output."""

import pytest
import torch
import torch.nn.functional as F
from formulas import convolved, of_length_one

from mixerlab.mixers.kda import KimiDeltaAttention


def layer_step_by_step(mixer, x):
    """The layer written out with plain loops, `x` `[T, d_model]`; keys by values."""
    heads, dim = mixer.num_heads, mixer.head_dim

    q, k, v = (convolved(mixer, name, x) for name in "qkv")
    q, k = of_length_one(q), of_length_one(k)
    beta = (2 if mixer.allow_neg_eigval else 1) * (x @ mixer.b_proj.weight.T).sigmoid()
    slow = F.softplus(mixer.f_b_proj(mixer.f_a_proj(x)) + mixer.dt_bias).view(-1, heads, dim)
    decay = (-mixer.A_log.exp()[:, None] * slow).exp()
    gate = mixer.g_b_proj(mixer.g_a_proj(x)).sigmoid().view(-1, heads, dim)
    rows = []
    for h in range(heads):
        state, outputs = torch.zeros(dim, dim, dtype=x.dtype), []
        for t in range(len(x)):
            state = decay[t, h][:, None] * state
            state = state + beta[t, h] * torch.outer(k[t, h], v[t, h] - k[t, h] @ state)
            o = q[t, h] @ state / dim**0.5
            outputs.append(o / (o.square().mean() + 1e-5).sqrt() * mixer.norm.weight * gate[t, h])
        rows.append(torch.stack(outputs))
    return torch.cat(rows, dim=1) @ mixer.o_proj.weight.T


@pytest.mark.parametrize("options", [{}, {"d_conv": 0, "allow_neg_eigval": True}])
def test_equals_the_formula(options):
    torch.manual_seed(0)
    mixer = KimiDeltaAttention(16, num_heads=2, chunk_size=4, **options).double()
    for parameter in (mixer.norm.weight, mixer.b_proj.weight, mixer.f_b_proj.weight, mixer.dt_bias):
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 11, 16, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], layer_step_by_step(mixer, x[0]))
