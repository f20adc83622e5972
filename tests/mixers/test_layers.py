"""Layers from x to the output, and their start: by formulas, and Mamba by mambapy."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from every_mixer import mixer_of
from formulas import assert_same_with_gradients, attention, convolved, delta_rule, of_length_one, plain_norm, rotary
from mambapy.mamba import MambaBlock, MambaConfig
from torch import nn

from mixerlab.mixers.gdn import GatedDeltaNet
from mixerlab.mixers.kda import KimiDeltaAttention
from mixerlab.mixers.mamba import Mamba


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *itertools.product(
            ("attn", "parallax"),
            ({}, {"bias": True}, {"window": 3}, {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6}),
        ),
        ("attn", {"qk_norm": False}),
        ("parallax", {"qkr_norm": False}),
        ("parallax", {"rope_on_rho": False}),
        ("parallax", {"rho_gate": True, "num_heads": 4, "num_kv_heads": 2}),
    ],
)
def test_attention_and_parallax_are_their_formula(name, options):
    mixer = mixer_of(name, 16, **{"num_heads": 2} | options).double()
    x, size, number = torch.randn(2, 140, 16, dtype=torch.float64), mixer.head_dim, mixer.num_heads
    kv_number, frequency = options.get("num_kv_heads", number), 10_000.0 ** (-torch.arange(size // 2) / (size // 2))

    def heads(name):
        y = getattr(mixer, f"{name}_proj")(x).unflatten(-1, (kv_number if name in "kv" else number, size))
        if name != "v" and (norm := getattr(mixer, f"{name}_norm", None)):
            y = plain_norm(y, nn.init.normal_(norm.weight))
        if name in "qk" or (name == "r" and options.get("rope_on_rho", True)):
            y = rotary(y, frequency)
        if name == "r" and options.get("rho_gate"):
            y = y / (1 + (-x @ mixer.g_proj.weight.T).exp())[..., None]
        return y.repeat_interleave(number // y.shape[2], dim=2)

    o = attention(*map(heads, "qkv" if name == "attn" else "qkvr"), window=mixer.window)
    assert_same_with_gradients(mixer(x), mixer.o_proj(o.flatten(2)), list(mixer.parameters()))
    has_bias = {layer.bias is not None for layer in mixer.modules() if isinstance(layer, nn.Linear)}
    assert has_bias == {options.get("bias", False)}
    assert mixer.state_size(140) == 2 * kv_number * size * (mixer.window or 140)


@pytest.mark.parametrize("name", ["attn", "parallax", "lla"])
def test_a_cast_to_16_bits_leaves_the_rotary_frequencies(name):
    mixer = mixer_of(name, 32)
    frequencies = mixer.rope.inverse_frequency.clone()
    assert mixer.bfloat16().q_proj.weight.dtype == torch.bfloat16
    torch.testing.assert_close(mixer.rope.inverse_frequency, frequencies, rtol=0, atol=0)


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
