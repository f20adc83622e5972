"""`gates` against its formula in float64, with exponentials only."""

import pytest
import torch
from cases import BACKENDS, BFLOAT16, FLOAT32, check, check_close, double, draw, run

from mixerlab.kernels.fused.gates import gates, operator

PARAMETERS = [("log_rate",), ("beta_bias",), (), ("log_rate", "beta_bias")]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def formula(decay_logit, beta_logit, decay_bias, log_rate=None, beta_bias=None):
    z = decay_logit + decay_bias
    log_decay = -(-z).exp().log1p() if log_rate is None else -log_rate.exp() * z.exp().log1p()
    return log_decay, 1 / (1 + (-beta_logit - (0 if beta_bias is None else beta_bias)).exp())


@pytest.mark.sampled(3)
@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", PARAMETERS, ids=str)
@pytest.mark.parametrize("bias", [0.0, -8.0, 8.0, -30.0, 30.0])
def test_gates(device, bias, names, dtype, backend):
    """A decay close to 1 keeps its relative precision, and a strong one does not overflow."""
    logits = draw((2, 19, 3), (2, 19, 3), device=device, dtype=dtype)
    parameters = dict(zip(("decay_bias", *names), draw(*[(3,)] * 3, device=device, seed=1), strict=False))
    parameters["decay_bias"] += bias
    actual = gates(*logits, **parameters, backend=backend)
    expected = formula(*double(logits), **{name: value.double() for name, value in parameters.items()})
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == torch.float32
        # e^z is computed in float32: its relative error grows with |z|.
        torch.testing.assert_close(one.double(), other, rtol=2e-6 * (1 + abs(bias)), atol=1e-30)


@each_backend
@pytest.mark.parametrize("names", PARAMETERS, ids=str)
@pytest.mark.parametrize("channels", [3, 6])
def test_gradients(device, channels, names, backend, monkeypatch):
    """Of logits that are columns of a wider tensor; two programs take several blocks of rows."""
    monkeypatch.setattr(operator, "processors", lambda device: 1)
    monkeypatch.setattr(operator, "BACKWARD_PROGRAMS", 2)
    monkeypatch.setattr(operator, "TILE", 64)

    def of_columns(function, **given):
        def of(packed, *parameters):
            decay_logit, beta_logit = packed[..., 2 : 5 + channels].split((channels, 3), dim=-1)
            return function(
                decay_logit, beta_logit, **dict(zip(("decay_bias", *names), parameters, strict=True)), **given
            )

        return of

    widths = {"beta_bias": 3}
    inputs = draw((2, 41, 11), *((widths.get(name, channels),) for name in ("decay_bias", *names)), device=device)
    expected = run(of_columns(formula), double(inputs))
    check(run(of_columns(gates, backend=backend), inputs), expected, 2 * FLOAT32)
    packed, *parameters = inputs
    rounded = [packed.bfloat16(), *parameters]
    check_close(of_columns(gates, backend=backend), of_columns(formula), rounded, 2 * BFLOAT16)


def test_float64_stays_float64():
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    assert [y.dtype for y in gates(x, x, x[0, 0], log_rate=x[0, 1])] == [torch.float64] * 2
