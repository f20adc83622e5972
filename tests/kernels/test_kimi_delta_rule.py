"""The delta rule with a decay for each channel: against plain loops, fla, and the gated delta rule as its case."""

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

from mixerlab.kernels.gated_delta_rule import gated_delta_rule
from mixerlab.kernels.kimi_delta_rule import kimi_delta_rule


def inputs_of(seed, strongest=3.0, make=random_inputs, **sizes):
    """Unit keys, some of them repeated; each channel decays by itself, from not at all to at once."""
    q, k, v, _, beta = make(seed, **sizes)
    log_decay = -strongest * torch.rand(k.shape, generator=torch.Generator().manual_seed(seed), dtype=beta.dtype) ** 3
    return [q, k, v, log_decay.to(q.device), 2 * beta]


def step_by_step(q, k, v, log_decay, beta):
    """The docstring's recurrence, values by keys."""
    batch, length, heads, dim = q.shape
    rows = []
    for b in range(batch):
        for h in range(heads):
            state = q.new_zeros(dim, dim)
            for t in range(length):
                key, step = k[b, t, h], beta[b, t, h]
                forgotten = state @ log_decay[b, t, h].exp().diag()
                state = forgotten @ (torch.eye(dim).to(q) - step * torch.outer(key, key))
                state = state + step * torch.outer(v[b, t, h], key)
                rows.append(state @ q[b, t, h] / dim**0.5)
    return torch.stack(rows).view(batch, heads, length, dim).transpose(1, 2)


@pytest.mark.parametrize(("length", "chunk_size"), [(1, 64), (23, 8), (23, 32)])
def test_equals_the_recurrence(length, chunk_size):
    inputs = inputs_of(0, length=length, dim=4)
    check(lambda *x: kimi_delta_rule(*x, chunk_size=chunk_size), step_by_step, inputs, tolerance=1e-12)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_any_decay_in_float32(device, backend):
    """Factors that by themselves would overflow: exp(90) is infinite in float32.

    Sums of log decays reach 600 and are rounded by 3e-5, and so are the decays between positions.
    """
    inputs = inputs_of(1, strongest=60.0, length=40, dim=16, dtype=torch.float32, device=device)
    check(lambda *x: kimi_delta_rule(*x, chunk_size=16, backend=backend), step_by_step, inputs, tolerance=5e-5)


def test_equals_fla():
    naive = pytest.importorskip("fla.ops.kda.naive")
    inputs = inputs_of(2, length=70, dim=16, dtype=torch.float32)
    theirs = value_and_gradients(lambda *x: naive.naive_recurrent_kda(*x)[0], inputs)
    torch.testing.assert_close(value_and_gradients(kimi_delta_rule, inputs), theirs, rtol=1e-4, atol=1e-5)


def test_with_one_decay_for_all_channels_it_is_the_gated_delta_rule():
    q, k, v, log_decay, beta = random_inputs(3, length=70)
    ours = kimi_delta_rule(q, k, v, log_decay[..., None].expand_as(q), beta, scale=0.3)
    torch.testing.assert_close(ours, gated_delta_rule(q, k, v, log_decay, beta, scale=0.3))


def test_replicas_side_by_side():
    check_replicas(kimi_delta_rule, [inputs_of(seed, length=19, dtype=torch.float32) for seed in (4, 5)])


def kernel(*inputs):
    return kimi_delta_rule(*inputs, chunk_size=16, backend="triton")


@pytest.mark.parametrize(("length", "dim"), [(1, 16), (39, 8)])
def test_kernel_equals_the_recurrence(device, length, dim):
    inputs = inputs_of(length, length=length, dim=dim, dtype=torch.float32, device=device)
    check(kernel, lambda *x: kimi_delta_rule(*x, backend="reference"), inputs, 1e-5)


@pytest.mark.slow
def test_kernel_under_vmap(device):
    check_replicas(kernel, [inputs_of(seed, length=19, dtype=torch.float32, device=device) for seed in (4, 5)])


@pytest.mark.gpu
@pytest.mark.parametrize("chunk_size", [32, 64])
@pytest.mark.parametrize("dim", [16, 64])
@pytest.mark.parametrize("length", [1, 63, 65, 500])
@pytest.mark.parametrize("make", [random_inputs, blank_heavy_inputs])
def test_kernel_in_bfloat16(make, length, dim, chunk_size):
    inputs = inputs_of(length, make=make, strongest=1.0, length=length, dim=dim, dtype=torch.bfloat16, device="cuda")
    inputs[-1] *= 0.5
    check(
        lambda *x: kimi_delta_rule(*x, chunk_size=chunk_size, backend="triton"),
        lambda *x: kimi_delta_rule(*x, backend="reference"),
        inputs,
        1.5e-2,
    )


@pytest.mark.gpu
def test_kernel_in_a_compiled_function_and_a_cuda_graph():
    check_compiled_and_captured(kimi_delta_rule, inputs_of(1, length=70, dim=32, dtype=torch.bfloat16, device="cuda"))
