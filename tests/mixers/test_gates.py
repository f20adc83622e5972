"""`gates` against its formula in float64, with exponentials only."""

import pytest
import torch

from mixerlab.mixers.gates import gates


def formula(decay_logit, beta_logit, decay_bias, log_rate=None, beta_bias=None):
    z = decay_logit + decay_bias
    log_decay = -(-z).exp().log1p() if log_rate is None else -log_rate.exp() * z.exp().log1p()
    return log_decay, 1 / (1 + (-beta_logit - (0 if beta_bias is None else beta_bias)).exp())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("names", [("log_rate",), ("beta_bias",), (), ("log_rate", "beta_bias")], ids=str)
@pytest.mark.parametrize("bias", [0.0, -8.0, 8.0, -30.0, 30.0])
def test_gates(bias, names, dtype):
    """A decay close to 1 keeps its relative precision, and a strong one does not overflow."""
    torch.manual_seed(0)
    logits = [torch.randn(2, 19, 3).to(dtype) for _ in range(2)]
    parameters = {name: torch.randn(3) for name in ("decay_bias", *names)}
    parameters["decay_bias"] += bias
    actual = gates(*logits, **parameters)
    expected = formula(*(x.double() for x in logits), **{name: value.double() for name, value in parameters.items()})
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == torch.float32
        # e^z is computed in float32: its relative error grows with |z|.
        torch.testing.assert_close(one.double(), other, rtol=2e-6 * (1 + abs(bias)), atol=1e-30)


def test_float64_stays_float64():
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    assert [y.dtype for y in gates(x, x, x[0, 0], log_rate=x[0, 1])] == [torch.float64] * 2
