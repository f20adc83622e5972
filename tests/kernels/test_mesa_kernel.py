"""The mesa layer against an exact float64 solve of its formula, against fla's, and its residual."""

import pytest
import torch
from recurrences import (
    blank_heavy_inputs,
    check,
    check_compiled_and_captured,
    check_replicas,
    mesa_inputs,
    output_weights,
    random_inputs,
    value_and_gradients,
)

from mixerlab.kernels.common.chunked import to_chunks
from mixerlab.kernels.mesa import mesa
from mixerlab.kernels.mesa.reference import build_systems, conjugate_gradients

NAMES = ("q", "k", "v", "log_decay", "beta", "ridge")


def states(k, v, log_decay, beta):
    """`H_t` `[B, T, H, D, D]` and `G_t` (values by keys), one position after the other."""
    key_state = value_state = k.new_zeros(k.shape[0], *k.shape[2:], k.shape[-1])
    key_states, value_states = [], []
    for t in range(k.shape[1]):
        decay = log_decay[:, t, :, None, None].exp()
        weighted = beta[:, t, :, None, None] * k[:, t, :, None, :]
        key_state = decay * key_state + k[:, t, :, :, None] * weighted
        value_state = decay * value_state + v[:, t, :, :, None] * weighted
        key_states.append(key_state)
        value_states.append(value_state)
    return torch.stack(key_states, dim=1), torch.stack(value_states, dim=1)


def exact(q, k, v, log_decay, beta, ridge):
    """The formula with a dense solve at every position."""
    key_states, value_states = states(k, v, log_decay, beta)
    solution = torch.linalg.solve(key_states + torch.diag_embed(ridge), q)
    return (value_states @ solution[..., None])[..., 0]


@pytest.mark.parametrize(("length", "chunk_size"), [(1, 64), (63, 64), (64, 64), (65, 64), (70, 16)])
def test_reference_equals_the_formula(length, chunk_size):
    """30 steps at head size 16 solve the systems: what remains is the rounding of float64."""
    inputs = mesa_inputs(length, length=length)
    check(lambda *x: mesa(*x, chunk_size=chunk_size, backend="reference"), exact, inputs, 1e-9, NAMES)


@pytest.mark.parametrize("gamma", [0.5, 0.99, 1.0])
@pytest.mark.parametrize("distinct_keys", [8, 512])
def test_thirty_steps_reach_the_stated_residual(gamma, distinct_keys):
    """`|q - (H + ridge) x| / |q|` in float32 at head size 64, T = 512, with the ridge at its lower bound."""
    rng = torch.Generator().manual_seed(distinct_keys)
    table = torch.nn.functional.normalize(torch.randn(distinct_keys, 64, generator=rng), dim=-1)
    # Skewed frequencies, as tokens have them, spread the eigenvalues of H.
    tokens = (torch.rand(1, 512, 1, generator=rng) ** 3 * distinct_keys).long()
    q = torch.nn.functional.normalize(torch.randn(1, 512, 1, 64, generator=rng), dim=-1)
    log_decay = torch.full((1, 512, 1), gamma).log()
    k, q, log_decay = (to_chunks(x, 64) for x in (table[tokens], q, log_decay))
    chunks, *_ = build_systems(k, k, log_decay, torch.ones_like(log_decay), torch.full((1, 64), 0.25))
    residual = (q - chunks.apply(conjugate_gradients(chunks, q, 30))).norm(dim=-1)
    assert residual.max() < 1e-4


def test_reference_equals_fla():
    naive = pytest.importorskip("fla.ops.mesa_net.naive")
    inputs = mesa_inputs(5, length=33, dtype=torch.float32)
    ours = value_and_gradients(mesa, inputs)
    theirs = value_and_gradients(
        lambda q, k, v, g, beta, ridge: naive.naive_mesa_net_exact(q, k, v, g, ridge, beta)[0], inputs
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("length", "dim"), [(1, 16), (16, 8), (39, 16)])
def test_kernel_equals_the_formula(device, length, dim):
    """The values stand among other columns, as in a packed projection. Heads of 8 are padded, and cut again."""

    def kernel(q, k, v, *rest):
        values = torch.cat((k, v), dim=2)[:, :, k.shape[2] :]
        return mesa(q, k, values, *rest, iterations=20, chunk_size=16, backend="triton")

    inputs = mesa_inputs(length, length=length, dim=dim, dtype=torch.float32, device=device)
    check(kernel, exact, inputs, 1e-5, NAMES)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_gradients_whose_squares_vanish(device, backend):
    """A loss at late positions reaches early ones through small decays: the gradient there is small, but not zero."""
    leaves = [x.requires_grad_() for x in mesa_inputs(3, length=20, dtype=torch.float32, device=device)]
    out = mesa(*leaves, chunk_size=16, backend=backend)
    weights = output_weights(out)
    whole = torch.autograd.grad(out, leaves, weights, retain_graph=True)
    small = torch.autograd.grad(out, leaves, 2.0**-90 * weights)
    for name, got, want in zip(NAMES, small, whole, strict=True):
        torch.testing.assert_close(2.0**90 * got, want, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_later_positions_change_nothing(device):
    """The positions of a chunk iterate until all have converged, but none goes on for the sake of a later one."""
    inputs = mesa_inputs(9, length=16, dtype=torch.float32, device=device)
    inputs[-1] *= 0.01  # a small ridge: later positions take more steps
    changed = [x.clone() for x in inputs]
    changed[0][:, 10:] = 0  # positions that need no step
    outputs = [mesa(*x, chunk_size=16, backend="triton")[:, :10] for x in (inputs, changed)]
    torch.testing.assert_close(*outputs, rtol=0, atol=0)


@pytest.mark.slow
def test_kernel_under_vmap(device):
    replicas = [mesa_inputs(seed, batch=2, length=19, dtype=torch.float32, device=device) for seed in (1, 2)]
    check_replicas(lambda *x: mesa(*x, iterations=4, chunk_size=16, backend="triton"), replicas)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk_size", [32, 64])
@pytest.mark.parametrize("dim", [16, 32, 64, 128])
@pytest.mark.parametrize("length", [1, 17, 63, 64, 65, 127, 500])
@pytest.mark.parametrize("make", [random_inputs, blank_heavy_inputs])
def test_kernel_in_bfloat16(make, length, dim, chunk_size):
    check(
        lambda *x: mesa(*x, chunk_size=chunk_size, backend="triton"),
        lambda *x: mesa(*x, iterations=2 * dim, backend="reference"),
        mesa_inputs(length, make=make, length=length, dim=dim, dtype=torch.bfloat16, device="cuda"),
        1e-2,
        NAMES,
    )


@pytest.mark.gpu
def test_kernel_in_a_compiled_function_and_a_cuda_graph():
    inputs = mesa_inputs(1, length=70, dim=32, dtype=torch.bfloat16, device="cuda")
    check_compiled_and_captured(mesa, inputs)
