"""Gated DeltaNet and Kimi Delta Attention as layers: their formulas from x to the output, and their start."""

import pytest
import torch
import torch.nn.functional as F
from formulas import convolved, delta_rule, of_length_one, plain_norm

from mixerlab.mixers.gdn import GatedDeltaNet
from mixerlab.mixers.kda import KimiDeltaAttention


def layer_step_by_step(mixer, x):
    q, k, v = (convolved(mixer, name, x) for name in "qkv")
    q, k = of_length_one(q), of_length_one(k)
    beta = (2 if mixer.allow_neg_eigval else 1) * (x @ mixer.b_proj.weight.T).sigmoid()
    if isinstance(mixer, KimiDeltaAttention):
        slow = F.softplus(mixer.f_b_proj(mixer.f_a_proj(x)) + mixer.dt_bias).view_as(k)
        decay = (-mixer.A_log.exp()[:, None] * slow).exp()
        gate = mixer.g_b_proj(mixer.g_a_proj(x)).sigmoid().view_as(v)
    elif mixer.ungated:
        decay, gate = torch.ones_like(k), 1
    else:
        decay = (-mixer.A_log.exp() * F.softplus(x @ mixer.a_proj.weight.T + mixer.dt_bias)).exp()
        decay, gate = decay[..., None].expand_as(k), F.silu(x @ mixer.g_proj.weight.T).view_as(v)
    o = delta_rule(q / mixer.head_dim**0.5, k, v, decay, beta)
    return (plain_norm(o, mixer.norm.weight) * gate).flatten(1) @ mixer.o_proj.weight.T


@pytest.mark.parametrize(
    ("make", "options"),
    [
        *(
            (GatedDeltaNet, {"ungated": ungated, "allow_neg_eigval": negative, "expand_v": expand_v})
            for ungated in (False, True)
            for negative in (False, True)
            for expand_v in (1, 2)
        ),
        (KimiDeltaAttention, {}),
        (KimiDeltaAttention, {"d_conv": 0, "allow_neg_eigval": True}),
    ],
)
def test_equals_the_formula(make, options):
    mixer = make(16, num_heads=2, chunk_size=4, **options).double()
    own = ("f_b_proj.weight", "dt_bias") if make is KimiDeltaAttention else ()
    for name in ("norm.weight", "b_proj.weight", *own):  # beta is all over its range
        torch.nn.init.normal_(mixer.get_parameter(name))
    x = torch.randn(1, 11, 16, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], layer_step_by_step(mixer, x[0]))


def test_starts_with_the_decays_of_mamba2():
    mixer = GatedDeltaNet(128, num_heads=64)
    decay_rate, time_step = mixer.A_log.exp(), F.softplus(mixer.dt_bias)
    assert 1 <= decay_rate.min() < 3 and 14 < decay_rate.max() <= 16
    assert 1e-3 * 0.999 <= time_step.min() < 2e-3 and 5e-2 < time_step.max() <= 0.1 * 1.001
    assert mixer.A_log._no_reinit and mixer.dt_bias._no_reinit
