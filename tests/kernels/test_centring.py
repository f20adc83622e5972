"""Centring against means over weights that are written out."""

import pytest
import torch
from recurrences import (
    blank_heavy_inputs,
    check,
    check_compiled_and_captured,
    check_replicas,
    random_inputs,
    value_and_gradients,
)

from mixerlab.kernels.centring import centred


def joined(results):
    """One tensor of all of them, because a comparison weighs one output."""
    q, k, v, beta, mean_v = results
    return torch.cat((*(x.flatten(2).to(beta.dtype) for x in (q, k, v, mean_v)), beta), dim=-1)


def kernel(q, k, v, *gates):
    """The values stand among other columns, as in a packed projection."""
    values = torch.cat((k, v), dim=2)[:, :, k.shape[2] :]
    return joined(centred(q, k, values, *gates, backend="triton"))


def exact(q, k, v, log_decay, beta):
    """Welford's terms, the means from all weights at each position."""
    decayed = log_decay.cumsum(1)
    rows, mean_k, mean_v = [], torch.zeros_like(k[:, 0]), torch.zeros_like(v[:, 0])
    for t in range(q.shape[1]):
        weights = beta[:, : t + 1] * (decayed[:, t : t + 1] - decayed[:, : t + 1]).exp()
        share = beta[:, t] / weights.sum(1)
        centred_k, centred_v = k[:, t] - mean_k, v[:, t] - mean_v
        mean_k, mean_v = (
            torch.einsum("bsh,bshd->bhd", weights, x[:, : t + 1]) / weights.sum(1)[..., None] for x in (k, v)
        )
        rows.append((q[:, t] - mean_k, centred_k, centred_v, beta[:, t] * (1 - share), mean_v))
    return joined(torch.stack(x, dim=1) for x in zip(*rows, strict=True))


@pytest.mark.parametrize(("length", "dim"), [(1, 16), (70, 8)])
def test_equals_the_formula(device, length, dim):
    sizes = {"length": length, "dim": dim}
    check(lambda *x: joined(centred(*x, backend="reference")), exact, random_inputs(length, **sizes), 1e-12)
    check(kernel, exact, random_inputs(length, **sizes, dtype=torch.float32, device=device), 1e-5)


def test_a_decay_that_leaves_nothing(device):
    inputs = random_inputs(1, length=70, dtype=torch.float32, device=device)
    inputs[3][:, [3, 66]] = -200.0
    check(kernel, exact, inputs, 1e-5)
    inputs[4][:, :3] = 0.0  # no weight at all
    results, gradients = value_and_gradients(kernel, inputs)
    assert all(x.isfinite().all() for x in (results, *gradients))


@pytest.mark.slow
def test_kernel_under_vmap(device):
    check_replicas(kernel, [random_inputs(seed, length=19, dtype=torch.float32, device=device) for seed in (1, 2)])


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [16, 32, 64])
@pytest.mark.parametrize("length", [1, 63, 65, 500])
@pytest.mark.parametrize("make", [random_inputs, blank_heavy_inputs])
def test_kernel_in_bfloat16(make, length, dim):
    inputs = make(length, length=length, dim=dim, dtype=torch.bfloat16, device="cuda")
    check(kernel, lambda *x: joined(centred(*x, backend="reference")), inputs, 1e-2)


@pytest.mark.gpu
def test_kernel_in_a_compiled_function_and_a_cuda_graph():
    inputs = random_inputs(1, length=70, dim=32, dtype=torch.bfloat16, device="cuda")
    check_compiled_and_captured(kernel, inputs)
