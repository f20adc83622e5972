"""The choices that the paper leaves open to a mixer: what each key does to it."""

import formulas
import pytest
import torch
from every_mixer import mixer_of
from torch import nn

WIDTH = 32


@pytest.mark.parametrize("name", ["attn", "parallax"])
def test_biases_are_those_of_linear_layers(name):
    """If one input channel is always 1, a bias can be replaced by a column of the weight."""
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


@pytest.mark.parametrize("name", ["attn", "parallax", "lla"])
def test_a_cast_to_16_bits_leaves_the_rotary_frequencies(name):
    mixer = mixer_of(name, WIDTH)
    frequencies = mixer.rope.inverse_frequency.clone()
    assert mixer.bfloat16().q_proj.weight.dtype == torch.bfloat16
    torch.testing.assert_close(mixer.rope.inverse_frequency, frequencies, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["attn", "parallax"])
def test_heads_of_queries_share_those_of_keys_and_values(name):
    """Each key head written down once for every head of its group gives the same."""
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
    gated = mixer_of("parallax", WIDTH, rho_gate=True, zero_init_rho=False).double()
    plain = mixer_of("parallax", WIDTH).double()
    plain.load_state_dict({key: value for key, value in gated.state_dict().items() if key != "g_proj.weight"})
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    *_, rho = plain.heads(plain.project(x))
    *qkv, gated_rho = gated.heads(gated.project(x))
    gate = 1 / (1 + (-x @ gated.g_proj.weight.T).exp())
    assert gate.shape == (2, 9, 2)
    torch.testing.assert_close(gated_rho, gate[..., None] * rho)
    o = formulas.attention(*qkv, gated_rho)
    torch.testing.assert_close(gated(x), o.flatten(2) @ gated.o_proj.weight.T)


@pytest.mark.parametrize("name", ["attn", "parallax"])
def test_a_window_hides_the_positions_before_it(name):
    options = {} if name == "attn" else {"zero_init_rho": False, "rope_on_rho": True}
    windowed = mixer_of(name, WIDTH, window=3, **options).double()
    full = mixer_of(name, WIDTH, **options).double()
    full.load_state_dict(windowed.state_dict())
    x = torch.randn(2, 9, WIDTH, dtype=torch.float64)
    # RoPE knows distances only, so each position may count from the first of its window.
    expected = [full(x[:, max(0, t - 2) : t + 1])[:, -1] for t in range(9)]
    torch.testing.assert_close(windowed(x), torch.stack(expected, dim=1))
