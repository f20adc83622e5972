"""Gated DeltaNet as a layer: its formula from x to the output, and its start."""

import pytest
import torch
import torch.nn.functional as F
from formulas import convolved, delta_rule, of_length_one, plain_norm

from mixerlab.mixers.gdn import GatedDeltaNet


def layer_step_by_step(mixer, x):
    """The layer written out, `x` `[T, d_model]`."""
    q, k, v = (convolved(mixer, name, x) for name in "qkv")
    q, k = of_length_one(q), of_length_one(k)
    beta = (2 if mixer.allow_neg_eigval else 1) * (x @ mixer.b_proj.weight.T).sigmoid()
    decay, gate = torch.ones_like(beta), 1
    if not mixer.ungated:
        decay = (-mixer.A_log.exp() * F.softplus(x @ mixer.a_proj.weight.T + mixer.dt_bias)).exp()
        gate = F.silu(x @ mixer.g_proj.weight.T).view_as(v)
    o = delta_rule(q / mixer.head_dim**0.5, k, v, decay[..., None].expand_as(k), beta)
    return (plain_norm(o, mixer.norm.weight) * gate).flatten(1) @ mixer.o_proj.weight.T


@pytest.mark.parametrize("expand_v", [1, 2])
@pytest.mark.parametrize("allow_neg_eigval", [False, True])
@pytest.mark.parametrize("ungated", [False, True])
def test_equals_the_formula(ungated, allow_neg_eigval, expand_v):
    options = {"ungated": ungated, "allow_neg_eigval": allow_neg_eigval, "expand_v": expand_v}
    mixer = GatedDeltaNet(16, num_heads=2, chunk_size=4, **options).double()
    torch.nn.init.normal_(mixer.norm.weight)
    torch.nn.init.normal_(mixer.b_proj.weight)  # beta all over its range
    x = torch.randn(1, 11, 16, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], layer_step_by_step(mixer, x[0]))


def test_starts_with_the_decays_of_mamba2():
    mixer = GatedDeltaNet(128, num_heads=64)
    decay_rate, time_step = mixer.A_log.exp(), F.softplus(mixer.dt_bias)
    assert 1 <= decay_rate.min() < 3 and 14 < decay_rate.max() <= 16
    assert 1e-3 * 0.999 <= time_step.min() < 2e-3 and 5e-2 < time_step.max() <= 0.1 * 1.001
    assert mixer.A_log._no_reinit and mixer.dt_bias._no_reinit
