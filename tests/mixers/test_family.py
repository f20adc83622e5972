"""The paper's map of mechanisms in float64: each from its formula, written out."""

import pytest
import torch
from every_mixer import mixer_of
from formulas import assert_same_with_gradients, convolved, delta_rule, of_length_one, plain_norm
from torch.nn import functional as F

WIDTH, LENGTH, HEADS = 16, 300, 2
PROBE = {"linear": "q", "affine_linear": "r"}


def drawn(name, **options):
    """A mixer in float64 with random weights, and an input."""
    mixer = mixer_of(name, WIDTH, **options).double()
    for parameter in mixer.parameters():
        parameter.data = torch.randn_like(parameter) * 0.4
    return mixer, torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)


def as_heads(mixer, x, name):
    """`[B, T, heads, head_dim]` of one projection, normed if the mixer norms it."""
    y = (x @ getattr(mixer, f"{name}_proj").weight.T).unflatten(-1, (HEADS, -1))
    norm = getattr(mixer, f"{name}_norm", None)
    return y if norm is None else F.rms_norm(y, y.shape[-1:], norm.weight, 1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("value_average", {}),
        *(("linear", {"qk_norm": norm}) for norm in (False, True)),
        *(("affine_linear", {"kr_norm": norm}) for norm in (False, True)),
    ],
)
def test_equals_the_formula(name, options):
    mixer, x = drawn(name, **options)
    x.requires_grad_(True)
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
    expected = torch.stack(rows, dim=1) @ mixer.o_proj.weight.T
    assert_same_with_gradients(mixer(x), expected, [x, *mixer.parameters()])


BARE = {"d_conv": 0, "unnormed": True, "ungated": True}
WITH_EXTRAS = {"d_conv": 4, "unnormed": False, "ungated": False}


def layer_of_mesa(mixer, x, affine):
    """The layer from `x` `[T, WIDTH]`: a regression from scratch at every position, its weights written out."""
    q, k = (convolved(mixer, name, x) for name in "qk")
    v = (x @ mixer.v_proj.weight.T).view(-1, HEADS, WIDTH // HEADS)
    log_decay, beta = torch.zeros(len(x), HEADS, dtype=x.dtype), torch.ones(len(x), HEADS, dtype=x.dtype)
    if not mixer.unnormed:
        q, k = of_length_one(q), of_length_one(k)
    if not mixer.ungated:
        log_decay, beta = mixer.a_proj(x).sigmoid().log(), mixer.b_proj(x).sigmoid()
    ridge = (F.softplus(mixer.ridge_logit) + mixer.ridge_lower_bound).view(HEADS, -1)
    rows = torch.zeros_like(q)
    for t in range(len(x)):
        for h in range(HEADS):
            keys, values = k[: t + 1, h], v[: t + 1, h]
            weights = torch.stack([beta[s, h] * log_decay[s + 1 : t + 1, h].sum().exp() for s in range(t + 1)])
            query, intercept = q[t, h], torch.zeros_like(v[t, h])
            if affine:
                mean_k, intercept = (weights @ y / weights.sum() for y in (keys, values))
                keys, values, query = keys - mean_k, values - intercept, query - mean_k
            moment = keys.T @ (weights[:, None] * keys) + ridge[h].diag()
            solved = torch.linalg.solve(moment, query)
            rows[t, h] = intercept + values.T @ (weights * (keys @ solved))
    rows = rows if mixer.unnormed else F.rms_norm(rows, rows.shape[-1:], mixer.norm.weight, 1e-5)
    return rows.flatten(1) @ mixer.o_proj.weight.T


@pytest.mark.parametrize("options", [BARE, WITH_EXTRAS])
@pytest.mark.parametrize("name", ["mesa", "affine_mesa"])
def test_mesa_is_a_regression(name, options):
    mixer, x = drawn(name, **options)
    x = x[:1, :140]
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], layer_of_mesa(mixer, x[0], affine=name == "affine_mesa"))


def test_the_ridge_of_mesa_starts_at_one():
    mixer = mixer_of("mesa", WIDTH)
    torch.testing.assert_close(F.softplus(mixer.ridge_logit) + mixer.ridge_lower_bound, torch.ones(WIDTH))


@pytest.mark.parametrize(("relative_ridge", "bandwidth", "scale"), [(False, 2.0, 1 / 2), (True, None, 8**-0.5)])
def test_lla_equals_the_formula(relative_ridge, bandwidth, scale):
    options = {"qk_norm": False, "cg_iterations": 16, "relative_ridge": relative_ridge, "bandwidth": bandwidth}
    lla, x = drawn("lla", **options)
    lla.rope.inverse_frequency.zero_()
    x = x[:, :40]
    # The paper's terms at every position: w, z = k - q, mu and rho*, all `[..., T, S or D]`.
    q, k, v = (y.transpose(1, 2) for y in lla.heads(lla.project(x)))
    w = (scale * q @ k.mT).exp().tril()
    z = k[:, :, None] - q[:, :, :, None]
    mu = torch.einsum("bhts,bhtsd->bhtd", w, z)
    ridge = lla.ridge * (w.sum(-1) if relative_ridge else torch.ones_like(w[..., 0]))
    sigma = torch.einsum("bhts,bhtsd,bhtse->bhtde", w, z, z) + ridge[..., None, None] * torch.eye(8, dtype=z.dtype)
    rho = torch.linalg.solve(sigma, mu)
    t = torch.einsum("bhtsd,bhtd->bhts", z, rho)
    s = w * (1 - t) / (w.sum(-1) - (mu * rho).sum(-1))[..., None]
    expected = (s @ v).transpose(1, 2).flatten(2) @ lla.o_proj.weight.T
    torch.testing.assert_close(lla(x), expected)


@pytest.mark.parametrize(
    ("options", "enough", "too_few"),
    [({}, 16, 8), ({"ridge": 0.1}, 32, 16), ({"relative_ridge": False}, 96, 16)],
)
def test_the_iterations_that_a_ridge_takes(options, enough, too_few):
    """In float32, of heads of 64, as the docstring of `cg_iterations` says."""
    lla, (q, k) = mixer_of("lla", 128, **options), F.rms_norm(torch.randn(2, 1, 128, 2, 64), (64,))
    lla.cg_iterations = 400
    exact = lla.probes(q.double(), k.double())
    errors = []
    for lla.cg_iterations in (enough, too_few):
        errors.append((lla.probes(q, k) - exact).norm() / exact.norm())
    assert errors[0] < 2e-5 and errors[1] > 5e-4, errors


@pytest.mark.parametrize("norms", [False, True])
def test_affine_delta_is_the_delta_rule_on_what_is_centred(norms):
    mixer, x = drawn("affine_delta", d_conv=0, unnormed=not norms)
    x = 0.5 * x[0, :40]
    q, k, v = ((x @ getattr(mixer, f"{name}_proj").weight.T).unflatten(-1, (HEADS, -1)) for name in "qkv")
    mean_k, mean_v = (y.cumsum(0) / torch.arange(1, 41)[:, None, None] for y in (k, v))
    q, k, v = q - mean_k, k - mean_k, v - mean_v
    if norms:
        q, k = of_length_one(q), of_length_one(k)
    o = mean_v + delta_rule(q, k, v, torch.ones_like(k), (x @ mixer.b_proj.weight.T).sigmoid())
    o = plain_norm(o, mixer.norm.weight) if norms else o
    torch.testing.assert_close(mixer(x[None])[0], o.flatten(1) @ mixer.o_proj.weight.T)


def test_lla_solves_in_float32_under_autocast(monkeypatch):
    """Rounded to 8 bits in each of the steps it would be another probe."""
    lla, x = drawn("lla")
    lla, x, found = lla.float(), x.float()[:, :40], []
    monkeypatch.setattr(lla, "probes", lambda q, k: found.append((q, k, type(lla).probes(lla, q, k))) or found[0][2])
    with torch.autocast("cpu", torch.bfloat16):
        lla(x)
    q, k, rho = found[0]
    assert (q.dtype, rho.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(rho, type(lla).probes(lla, q.double(), k.double()).float(), rtol=1e-3, atol=1e-4)
