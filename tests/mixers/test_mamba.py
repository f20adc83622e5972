"""The Mamba mixer against mambapy's block, which runs the recurrence step by step."""

import pytest
import torch
import torch.nn.functional as F
from mambapy.mamba import MambaBlock, MambaConfig

from mixerlab.mixers.mamba import Mamba

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
