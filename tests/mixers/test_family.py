"""The paper's map of mechanisms in float64: each from its formula, written out, and as a limit of another."""

import pytest
import torch
from every_mixer import mixer_of
from torch.nn import functional as F

WIDTH, LENGTH, HEADS = 16, 300, 2
PROBE = {"linear": "q", "affine_linear": "r"}


def twins(*names_and_options):
    """Mixers in float64 with the same random weights in layers of one name, and an input."""
    torch.manual_seed(0)
    mixers, shared = [], {}
    for name, options in names_and_options:
        mixer = mixer_of(name, WIDTH, **options).double()
        for key, parameter in mixer.named_parameters():
            shared.setdefault(key, torch.randn_like(parameter) * 0.4)
            parameter.data.copy_(shared[key])
        mixers.append(mixer)
    return *mixers, torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)


def as_heads(mixer, x, name):
    """`[B, T, heads, head_dim]` of one projection, normed if the mixer norms it."""
    y = (x @ getattr(mixer, f"{name}_proj").weight.T).unflatten(-1, (HEADS, -1))
    norm = getattr(mixer, f"{name}_norm", None)
    return y if norm is None else F.rms_norm(y, y.shape[-1:], norm.weight, 1e-5)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", ["value_average", "linear", "affine_linear"])
def test_equals_the_formula(name, norm):
    options = {"value_average": {}, "linear": {"qk_norm": norm}, "affine_linear": {"kr_norm": norm}}[name]
    mixer, x = twins((name, options))
    v, rows = as_heads(mixer, x, "v"), []
    k, probe = (None, None) if name == "value_average" else (as_heads(mixer, x, y) for y in ("k", PROBE[name]))
    for t in range(LENGTH):
        seen = v[:, : t + 1]
        o = seen.mean(1) if name != "linear" else torch.zeros_like(v[:, t])
        if name != "value_average":
            keys = k[:, : t + 1]
            moment = torch.einsum("bshd,bshe->bhde", seen, keys) / (t + 1)  # S
            if name == "affine_linear":
                moment = -(moment - torch.einsum("bhd,bhe->bhde", seen.mean(1), keys.mean(1)))
            o = o + torch.einsum("bhde,bhe->bhd", moment, probe[:, t])
        rows.append(o.flatten(1))
    torch.testing.assert_close(mixer(x), torch.stack(rows, dim=1) @ mixer.o_proj.weight.T)


def with_zero(mixer, projection):
    getattr(mixer, f"{projection}_proj").weight.data.zero_()
    return mixer


def without_rotation(mixer):
    mixer.rope.inverse_frequency.zero_()
    return mixer


def test_attention_with_queries_of_zero_is_the_mean_of_values():
    attention, mean, x = twins(("attn", {}), ("value_average", {}))
    torch.testing.assert_close(with_zero(attention, "q")(x), mean(x))


def test_affine_linear_with_a_probe_of_zero_is_the_mean_of_values():
    affine, mean, x = twins(("affine_linear", {}), ("value_average", {}))
    assert (affine(x) - mean(x)).abs().max() > 0.1
    torch.testing.assert_close(with_zero(affine, "r")(x), mean(x))


@pytest.mark.parametrize("norm", [False, True])
def test_parallax_with_queries_of_zero_is_affine_linear(norm):
    parallax, affine, x = twins(("parallax", {"qkr_norm": norm}), ("affine_linear", {"kr_norm": norm}))
    torch.testing.assert_close(with_zero(without_rotation(parallax), "q")(x), affine(x))


def test_affine_linear_of_centred_keys_and_values_is_linear():
    """Means of zero drop the intercept: at the end of a sequence that is followed by its own negative."""
    affine, linear, x = twins(("affine_linear", {"kr_norm": False}), ("linear", {"qk_norm": False}))
    linear.q_proj.weight.data = -affine.r_proj.weight.data
    both = torch.cat((x, -x), dim=1)
    torch.testing.assert_close(affine(both)[:, -1], linear(both)[:, -1])


def test_the_sums_before_a_chunk_get_gradients():
    mixer, x = twins(("linear", {}))
    x.requires_grad_(True)
    (gradient,) = torch.autograd.grad(mixer(x)[:, -1].square().sum(), x)
    q, k, v = (as_heads(mixer, x, name) for name in "qkv")
    o = torch.einsum("bhd,bshd,bshe->bhe", q[:, -1], k, v).flatten(1) / LENGTH @ mixer.o_proj.weight.T
    torch.testing.assert_close(gradient, torch.autograd.grad(o.square().sum(), x)[0])
