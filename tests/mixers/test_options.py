"""The choices that the paper leaves open to a mixer: what each key does to it."""

from functools import partial

import pytest
import torch
from every_mixer import mixer_of
from torch import nn

import mixerlab
from mixerlab.mixers import attn, parallax
from mixerlab.mixers.base import NORM_EPS

WIDTH = 32


@pytest.mark.parametrize("name", ["attn", "parallax"])
def test_biases_are_those_of_linear_layers(name):
    """If one input channel is always 1, a bias can be replaced by a column of the weight."""
    torch.manual_seed(0)
    plain = mixer_of(name, WIDTH)
    biased = mixer_of(name, WIDTH, bias=True)
    biased.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(2, 9, WIDTH)
    x[..., 0] = 1
    linears = {key: module for key, module in biased.named_modules() if isinstance(module, nn.Linear)}
    assert all(linear.bias is not None for linear in linears.values())
    with torch.no_grad():
        for key, linear in linears.items():
            nn.init.normal_(linear.bias, std=0.3)
            if key != "o_proj":
                plain.get_submodule(key).weight[:, 0] += linear.bias
        torch.testing.assert_close(biased(x), plain(x) + linears["o_proj"].bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["attn", "parallax"])
def test_attention_with_biases_has_mad_labs_parameters(name):
    norm = {"attn": "mixer.qk_norm=false", "parallax": "mixer.qkr_norm=false"}[name]
    model = mixerlab.build_model(f"mixer={name}", "task=icr", "mixer.num_heads=16", "mixer.bias=true", norm)
    extra = 2 * 128 * 129 if name == "parallax" else 0
    assert sum(parameter.numel() for parameter in model.parameters()) == 407_184 + extra


def test_wider_values_are_two_maps_of_the_same_keys():
    """If both halves of the values are those of a narrow mixer, the result is the narrow mixer's."""
    torch.manual_seed(0)
    wide = mixer_of("gdn", WIDTH, expand_v=2, num_heads=2)
    assert wide.v_proj.weight.shape == wide.g_proj.weight.shape == (2 * WIDTH, WIDTH)
    assert wide.o_proj.weight.shape == (WIDTH, 2 * WIDTH) and wide.norm.weight.shape == (WIDTH,)
    assert wide.state_size(7) == 2 * 16 * 32 + 4 * WIDTH * 3
    narrow = mixer_of("gdn", WIDTH, expand_v=1, num_heads=2)
    same = {key: value for key, value in wide.state_dict().items() if value.shape == narrow.state_dict()[key].shape}
    narrow.load_state_dict(same, strict=False)
    # Both halves of a head's values are the narrow mixer's, and so are gate and output.
    with torch.no_grad():
        for key in ("v_proj.weight", "g_proj.weight", "v_conv.weight"):
            halves = narrow.get_parameter(key).unflatten(0, (2, 16))
            wide.get_parameter(key).copy_(torch.cat((halves, halves), dim=1).flatten(0, 1))
        halves = narrow.o_proj.weight.unflatten(1, (2, 16)) / 2
        wide.o_proj.weight.copy_(torch.cat((halves, halves), dim=2).flatten(1))
    x = torch.randn(2, 9, WIDTH)
    torch.testing.assert_close(wide(x), narrow(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("mixer", "normed"),
    [
        (partial(attn.Attention, qk_norm=True), "qk"),
        (partial(parallax.Parallax, qkr_norm=True, rope_on_rho=True), "qkr"),
    ],
)
def test_norms_are_pytorchs_before_the_rotation(mixer, normed):
    torch.manual_seed(0)
    mixer = mixer(32)
    norms = {name: getattr(mixer, f"{name}_norm") for name in normed}
    for norm in norms.values():
        nn.init.normal_(norm.weight)
    x = torch.randn(2, 9, 32)
    given = dict(zip("qkvr", mixer.heads(mixer.project(x)), strict=False))
    turns = torch.arange(9)[:, None] * 10_000.0 ** (-torch.arange(0, 16, 2) / 16)
    turns = torch.polar(torch.ones_like(turns), turns)[:, None]
    for name, norm in norms.items():
        expected = norm(getattr(mixer, f"{name}_proj")(x).unflatten(-1, (2, 16)))
        pairs = torch.complex(*expected.chunk(2, dim=-1)) * turns
        expected = torch.cat((pairs.real, pairs.imag), dim=-1)
        torch.testing.assert_close(given[name], expected)
    assert {norm.eps for norm in norms.values()} == {NORM_EPS}


@pytest.mark.parametrize("name", ["attn", "parallax"])
def test_heads_of_queries_share_those_of_keys_and_values(name):
    """Each key head written down once for every head of its group gives the same."""
    torch.manual_seed(0)
    options = {"num_heads": 4, "head_dim": 6}
    if name == "parallax":
        options |= {"zero_init_rho": False, "rho_gate": True}
    grouped = mixer_of(name, WIDTH, num_kv_heads=2, **options).double()
    full = mixer_of(name, WIDTH, **options).double()
    weights = grouped.state_dict()
    for key in ("k_proj.weight", "v_proj.weight"):
        assert weights[key].shape == (12, WIDTH) and weights["o_proj.weight"].shape == (WIDTH, 24)
        weights[key] = weights[key].unflatten(0, (2, 6)).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(grouped(x), full(x))
    assert 2 * grouped.state_size(9) == full.state_size(9) == 2 * 24 * 9


def test_the_gate_scales_the_probe_of_each_head():
    """The formula, with one gate a head behind the norm."""
    torch.manual_seed(0)
    gated = mixer_of("parallax", WIDTH, rho_gate=True, zero_init_rho=False).double()
    plain = mixer_of("parallax", WIDTH).double()
    plain.load_state_dict({key: value for key, value in gated.state_dict().items() if key != "g_proj.weight"})
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    *_, rho = plain.heads(plain.project(x))
    *qkv, gated_rho = gated.heads(gated.project(x))
    gate = 1 / (1 + (-x @ gated.g_proj.weight.T).exp())
    assert gate.shape == (2, 9, 2)
    torch.testing.assert_close(gated_rho, gate[..., None] * rho)
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    q, k, v = (y.transpose(1, 2) for y in qkv)
    p = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    t = gated_rho.transpose(1, 2) @ k.mT
    o = p @ v - (p * (t - (p * t).sum(-1, keepdim=True))) @ v
    torch.testing.assert_close(gated(x), o.transpose(1, 2).flatten(2) @ gated.o_proj.weight.T)


@pytest.mark.parametrize("name", ["attn", "parallax"])
def test_a_window_hides_the_positions_before_it(name):
    torch.manual_seed(0)
    options = {} if name == "attn" else {"zero_init_rho": False, "rope_on_rho": True}
    windowed = mixer_of(name, WIDTH, window=3, **options).double()
    full = mixer_of(name, WIDTH, **options).double()
    full.load_state_dict(windowed.state_dict())
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    # RoPE knows distances only, so each position may count from the first of its window.
    expected = [full(x[:, max(0, t - 2) : t + 1])[:, -1] for t in range(9)]
    torch.testing.assert_close(windowed(x), torch.stack(expected, dim=1))
