"""Heads narrower than the tiles of the kernels for recurrences: padded to 16 columns, and cut again."""

import pytest
import torch
import torch.nn.functional as F

from mixerlab.kernels.gated_delta_rule import gated_delta_rule
from mixerlab.kernels.mesa import mesa


@pytest.mark.parametrize("operator", [gated_delta_rule, mesa])
def test_heads_of_eight_run_in_the_kernels(operator, device):
    """What the reference computes, gradients too."""
    torch.manual_seed(0)
    q, k, v = (F.normalize(torch.randn(1, 20, 2, 8, device=device), dim=-1) for _ in range(3))
    decay, beta = -torch.rand(1, 20, 2, device=device), torch.rand(1, 20, 2, device=device)
    ridge = [torch.rand(2, 8, device=device) + 0.5] if operator is mesa else []
    inputs = [x.requires_grad_() for x in (q, k, v, decay, beta, *ridge)]
    weight = torch.randn(8, device=device)
    results = []
    for backend in ("reference", "triton"):
        out = operator(*inputs, chunk_size=16, backend=backend)
        results.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
