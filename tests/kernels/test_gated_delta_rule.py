"""The gated delta rule against a float64 loop of its formula, against fla's loop."""

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

from mixerlab.kernels.common.triton_chunked import tile_options
from mixerlab.kernels.gated_delta_rule import gated_delta_rule


def step_by_step(q, k, v, log_decay, beta, scale):
    """The formula, one position after the other, for each value head with its key head."""
    per_key = v.shape[2] // k.shape[2]
    q, k, log_decay, beta = (x.repeat_interleave(per_key, dim=2) for x in (q, k, log_decay, beta))
    state, outputs = v.new_zeros(*v.shape[:1], *v.shape[2:], k.shape[-1]), []
    for t in range(q.shape[1]):
        decay, step = log_decay[:, t, :, None, None].exp(), beta[:, t, :, None, None]
        key, value = k[:, t, :, None, :], v[:, t, :, :, None]
        state = decay * (state - step * (state @ key.mT) @ key) + step * value @ key
        outputs.append(scale * (state @ q[:, t, :, :, None])[..., 0])
    return torch.stack(outputs, dim=1)


def with_more_values(inputs, per_key):
    """The inputs with `per_key` value heads to each key head."""
    q, k, v, *gates = inputs
    return [q, k, torch.cat([v.roll(i, dims=1) for i in range(per_key)], dim=2), *gates]


@pytest.mark.parametrize(("length", "chunk_size"), [(1, 64), (63, 64), (64, 64), (65, 64), (70, 16)])
def test_reference_equals_the_formula(length, chunk_size):
    inputs = random_inputs(length, length=length)
    check(
        lambda *x: gated_delta_rule(*x, scale=0.7, chunk_size=chunk_size, backend="reference"),
        lambda *x: step_by_step(*x, scale=0.7),
        inputs,
        tolerance=1e-11,
    )


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_negative_eigenvalues_with_repeated_keys_and_no_decay(backend, device):
    """Steps of nearly 2 reflect the state at one key again and again, and forget neither it nor its rounding."""
    q, k, v, log_decay, _ = random_inputs(3, length=70, dtype=torch.float32, device=device)
    inputs = [q, k[:, :1].expand_as(k), v, 0 * log_decay, torch.full_like(log_decay, 1.98)]
    check(
        lambda *x: gated_delta_rule(*x, chunk_size=32, backend=backend),
        lambda *x: step_by_step(*x, scale=16**-0.5),
        inputs,
        # The kernel inverts each chunk's system, and its error grows with the chunk: on a GPU 3.1e-5 for log_decay.
        tolerance=5e-5 if backend == "triton" else 3e-5,
    )


def test_reference_equals_fla():
    naive = pytest.importorskip("fla.ops.gated_delta_rule.naive")
    inputs = random_inputs(5, length=33, dtype=torch.float32)
    ours = value_and_gradients(gated_delta_rule, inputs)
    theirs = value_and_gradients(
        lambda q, k, v, g, beta: naive.naive_recurrent_gated_delta_rule(q, k, v, beta, g)[0], inputs
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("length", "per_key", "dim"), [(1, 1, 16), (16, 1, 8), (39, 2, 16), (18, 3, 16)])
def test_kernel_equals_the_formula(device, length, per_key, dim):
    """Heads of 8 are padded to the 16 columns of a tile, and cut again."""
    inputs = random_inputs(length, length=length, dim=dim, dtype=torch.float32, device=device)
    check(
        lambda *x: gated_delta_rule(*x, scale=0.7, chunk_size=16, backend="triton"),
        lambda *x: step_by_step(*x, scale=0.7),
        with_more_values(inputs, per_key),
        tolerance=1e-5,
    )


def test_values_in_parts(device, monkeypatch):
    from mixerlab.kernels.gated_delta_rule import operator

    monkeypatch.setattr(operator, "PART", 16)
    check(
        lambda *x: gated_delta_rule(*x, chunk_size=16, backend="triton"),
        lambda *x: step_by_step(*x, scale=32**-0.5),
        with_more_values(random_inputs(1, length=39, dim=32, dtype=torch.float32, device=device), 2),
        tolerance=1e-5,
    )


def test_kernel_under_vmap(device):
    replicas = [random_inputs(seed, batch=1, length=19, dtype=torch.float32, device=device) for seed in (1, 2)]
    check_replicas(lambda *x: gated_delta_rule(*x, chunk_size=16, backend="triton"), replicas)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk_size", [32, 64])
@pytest.mark.parametrize("dim", [16, 32, 64, 128])
@pytest.mark.parametrize("length", [1, 17, 63, 64, 65, 127, 500])
@pytest.mark.parametrize("make", [random_inputs, blank_heavy_inputs])
@pytest.mark.parametrize("per_key", [1, 2])
def test_kernel_in_bfloat16(make, length, dim, chunk_size, per_key):
    check(
        lambda *x: gated_delta_rule(*x, chunk_size=chunk_size, backend="triton"),
        lambda *x: gated_delta_rule(*x, backend="reference"),
        with_more_values(make(length, length=length, dim=dim, dtype=torch.bfloat16, device="cuda"), per_key),
        tolerance=1e-2,
    )


@pytest.mark.gpu
def test_kernel_in_a_compiled_function_and_a_cuda_graph():
    inputs = with_more_values(random_inputs(1, length=70, dim=32, dtype=torch.bfloat16, device="cuda"), 2)
    check_compiled_and_captured(gated_delta_rule, inputs)


def test_more_heads_than_a_launch_holds_are_refused():
    q = torch.empty(2**15, 1, 2, 16, device="meta")
    with pytest.raises(ValueError, match="32768 sequences of 2 heads: the kernel takes at most 65535"):
        tile_options(q, 64)
