"""Layers from x to the output, and their start: by formulas, and Mamba by mambapy."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from formulas import assert_same_with_gradients, attention, convolved, delta_rule, of_length_one, plain_norm, rotary
from mambapy.mamba import MambaBlock, MambaConfig
from torch import nn

from mixerlab.mixers.attn import Attention
from mixerlab.mixers.gdn import GatedDeltaNet
from mixerlab.mixers.kda import KimiDeltaAttention
from mixerlab.mixers.mamba import Mamba
from mixerlab.mixers.parallax import Parallax


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(
    ("make", "turned"),
    [(Attention, "qk"), (partial(Parallax, rope_on_rho=True), "qkr"), (partial(Parallax, rope_on_rho=False), "qk")],
)
def test_attention_and_parallax_are_their_formula(make, turned, normed):
    names = "qk" if make is Attention else "qkr"
    mixer = make(16, num_heads=2, **{f"{names}_norm": normed}).double()
    x, frequency = torch.randn(2, 140, 16, dtype=torch.float64), 10_000.0 ** (-torch.arange(4) / 4)

    def heads(name):
        y = (x @ getattr(mixer, f"{name}_proj").weight.T).unflatten(-1, (2, 8))
        if normed and name in names:
            y = plain_norm(y, nn.init.normal_(getattr(mixer, f"{name}_norm").weight))
        return rotary(y, frequency) if name in turned else y

    o = attention(*map(heads, "qkv" if make is Attention else "qkvr"))
    assert_same_with_gradients(mixer(x), o.flatten(2) @ mixer.o_proj.weight.T, list(mixer.parameters()))


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


THEIR_NAMES = {"conv.weight": "conv1d.weight", "conv.bias": "conv1d.bias"}


@pytest.mark.parametrize("parallel_scan", [False, True])
def test_equals_mambapy(parallel_scan):
    ours = Mamba(d_model=12, d_state=4)
    theirs = MambaBlock(MambaConfig(d_model=12, n_layers=1, d_state=4, pscan=parallel_scan))
    with torch.no_grad():
        ours.D.normal_()
        ours.A_log.add_(torch.randn_like(ours.A_log))
    theirs.load_state_dict({THEIR_NAMES.get(n, n): p for n, p in ours.state_dict().items()})

    x = torch.randn(3, 37, 12)
    y, their_y = ours(x), theirs(x)
    torch.testing.assert_close(y, their_y, rtol=1e-5, atol=1e-6)
    grad = torch.randn_like(y)
    y.backward(grad)
    their_y.backward(grad)
    their_grads = {n: p.grad for n, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        expected = their_grads[THEIR_NAMES.get(name, name)]
        error = (parameter.grad - expected).norm() / expected.norm()
        assert error < 1e-5, f"{name}: relative error {error:.1e}"


def test_initial_step_sizes_and_rates():
    mixer = Mamba(d_model=128, dt_min=0.01, dt_max=0.2)
    step = F.softplus(mixer.dt_proj.bias)
    assert 0.01 * 0.999 <= step.min() < 0.015 and 0.15 < step.max() <= 0.2 * 1.001
    assert mixer.dt_proj.bias._no_reinit
    torch.testing.assert_close(mixer.A_log.exp(), torch.arange(1.0, 17).expand(256, 16))
