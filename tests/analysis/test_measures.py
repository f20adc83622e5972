"""The measures of the paper against hand-made cases, and against loops over its equations in float64."""

import math

import pytest
import torch

from mixerlab.analysis import measures
from mixerlab.kernels.parallax.reference import visible_keys

T, D = 9, 3
SEEN = visible_keys(T, None, torch.device("cpu"))


@pytest.fixture
def case():
    torch.manual_seed(0)
    q, k, v, rho = torch.randn(4, T, D, dtype=torch.float64)
    p = measures.softmax_weights(q, k, 0.7, SEEN)
    return q, k, v, rho, p, measures.combined_weights(p, rho, k)


def at(case, i):
    """Of query i in loops: its p, the means of k and v, and the covariances of (v, k), (v, v) and (k, k)."""
    q, k, v, *_ = case
    weights = [math.exp(0.7 * float(q[i] @ k[j])) for j in range(i + 1)]
    p = [weight / sum(weights) for weight in weights]

    def mean(x):
        return sum(p[j] * x[j] for j in range(i + 1))

    def covariance(x, y):
        return sum(p[j] * torch.outer(x[j] - mean(x), y[j] - mean(y)) for j in range(i + 1))

    return p, mean(k), mean(v), covariance(v, k), covariance(v, v), covariance(k, k)


def inverse_root(matrix, ridge):
    values, vectors = torch.linalg.eigh(matrix + ridge * matrix.trace() / D * torch.eye(D, dtype=matrix.dtype))
    return vectors @ torch.diag(values**-0.5) @ vectors.T


def test_equals_the_equations_query_by_query(case):
    _, k, v, rho, p, s = case
    vk, vv, kk = measures.covariance(p, v, k), measures.covariance(p, v, v), measures.covariance(p, k, k)
    cor = measures.correction_to_output(p, s, v)
    corr, cpa = measures.correlation_norm(vk, vv, kk, ridge=0.03), measures.probe_alignment(vk, rho)
    for i in range(1, T):
        own, mean_k, mean_v, own_vk, own_vv, own_kk = at(case, i)
        t = [float(rho[i] @ k[j]) for j in range(i + 1)]
        own_s = [own[j] * (1 - t[j] + float(rho[i] @ mean_k)) for j in range(i + 1)]
        correction = own_vk @ rho[i]
        own_corr = inverse_root(own_vv, 0.03) @ own_vk @ inverse_root(own_kk, 0.03)
        found = {
            "p": (p[i, : i + 1], own),
            "s": (s[i, : i + 1], own_s),
            "vk": (vk[i], own_vk),
            "COR": (cor[i], correction.norm() / mean_v.norm()),
            "Corr": (corr[i], own_corr.norm()),
            "CPA": (cpa[i], correction.norm() / rho[i].norm() / torch.linalg.svdvals(own_vk)[0]),
            "sink p": (measures.sink(p)[i], own[0]),
            "sink s": (measures.combined_sink(s)[i], own_s[0] ** 2 / sum(x**2 for x in own_s)),
            "entropy": (measures.entropy(p)[i], -sum(x * math.log(x) for x in own)),
        }
        for name, (one, other) in found.items():
            other = torch.as_tensor(other, dtype=torch.float64)
            torch.testing.assert_close(one, other, rtol=3e-5 if name == "CPA" else 1e-9, atol=1e-12, msg=name)


def test_keys_that_tell_the_values_have_the_largest_correlation():
    """It does not depend on scales, is sqrt(D) up to the ridge, and small for values of their own."""
    k, noise = torch.randn(2, 4000, D, dtype=torch.float64)
    p = torch.full((1, 4000), 1 / 4000, dtype=torch.float64)

    def corr(k, v):
        return measures.correlation_norm(*(measures.covariance(p, *pair) for pair in ((v, k), (v, v), (k, k)))).item()

    turned = k @ torch.linalg.qr(torch.randn(D, D).double())[0]
    assert corr(k, turned) == pytest.approx(D**0.5 / 1.01, rel=1e-3)
    assert corr(100 * k, 1e-3 * turned + 7) == pytest.approx(corr(k, turned))
    assert corr(k, noise) < 0.1


def test_a_token_and_its_copies_have_no_covariance(case):
    """Not even rounding, which would be a correlation."""
    _, k, v, rho, p, _ = case
    same = v[:1].expand(T, -1)
    vk, vv, kk = measures.covariance(p, same, k), measures.covariance(p, same, same), measures.covariance(p, k, k)
    assert not vk.any() and not vv.any()
    assert measures.correlation_norm(vk, vv, kk).isnan().all() and measures.probe_alignment(vk, rho).isnan().all()


@pytest.mark.parametrize("shape", [(64, 64), (2, 5, 16, 64), (3, 64, 16)])
@pytest.mark.parametrize("scale", [1e-12, 1e6])
def test_norms_and_ranks_are_those_of_the_singular_values(shape, scale):
    matrix = scale * torch.randn(shape, dtype=torch.float64)
    values = torch.linalg.svdvals(matrix)
    torch.testing.assert_close(measures.spectral_norm(matrix), values[..., 0], rtol=2e-5, atol=0)
    rank = (values**2).sum(dim=-1) / values[..., 0] ** 2
    torch.testing.assert_close(measures.stable_rank(matrix), rank, rtol=4e-5, atol=0)
    assert measures.stable_rank(torch.zeros(3, 3)).isnan() and measures.spectral_norm(torch.zeros(3, 3)) == 0


def test_a_circuit_is_what_a_head_computes():
    w_q, w_k, w_v, w_o = torch.randn(4, 2, 3, 8, dtype=torch.float64)  # two heads of 3, width 8; W_O transposed
    x, y = torch.randn(2, 8, dtype=torch.float64)
    for head in range(2):
        score = (w_q[head] @ x) @ (w_k[head] @ y)
        torch.testing.assert_close(x @ measures.circuit(w_q, w_k)[head] @ y, score)
        torch.testing.assert_close(measures.circuit(w_o, w_v)[head] @ x, w_o[head].T @ (w_v[head] @ x))
