"""The kernels against PyTorch. The optimizers that use them are tested in tests/training."""

import math

import pytest
import torch
from cases import draw

from mixerlab.kernels.optimizer.population_step import update_moments, update_parameters

REPLICAS, SIZE, STEPS = 3, 5000, 7  # more than one block of columns, and a part of one
MATRICES = [0, 700, 1100, SIZE]
ON_STATE = {"step": 4.0, "active": [1.0, 0.0, 1.0], "steps_taken": [4.0, 2.0, 4.0]}


def state(device):
    """In the middle of a training, whose second replica is frozen."""
    return {name: torch.tensor(value, device=device) for name, value in ON_STATE.items()}


def for_moments(device, matrices, nesterov=False):
    """Keyword arguments; the gradients of the replicas are of norm 0.07, 70 and 700, so that two are clipped."""
    gradient, first, second = draw(*[(REPLICAS, SIZE)] * 3, device=device, seed=matrices)
    return {
        "gradient": gradient * torch.tensor([[1e-3], [1.0], [10.0]], device=device),
        "first_moment": first,
        "second_moment": second.square(),
        **state(device),
        "matrices": matrices,
        "momentum": 0.9,
        "nesterov": nesterov,
        "betas": (0.8, 0.95),
        "max_norm": 2.0,
    }


def for_parameters(device, matrices, step=4.0):
    sizes = *[(REPLICAS, SIZE)] * 3, (REPLICAS, matrices), (SIZE,), (SIZE,), (4, STEPS)
    parameters, first, second, polar, scale, decay, schedule = draw(*sizes, device=device, seed=matrices)
    return {
        "parameters": parameters,
        "polar": polar,
        "first_moment": first,
        "second_moment": second.square(),
        "step": torch.tensor(step, device=device),
        "active": torch.tensor(ON_STATE["active"], device=device),
        "lr": torch.tensor([0.1, 0.2, 0.03], device=device),
        "column_scale": scale.abs(),
        "column_decay": (torch.arange(SIZE, device=device) < 700) + 0.1 * decay.abs(),
        "schedule": 0.1 + schedule.abs(),
        "eps": 1e-7,
    }


def assert_same(ours, expected, *names):
    for name in names:
        torch.testing.assert_close(ours[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("matrices", MATRICES)
def test_moments_are_the_references(device, matrices, nesterov):
    ours, expected, before = (for_moments(device, matrices, nesterov) for _ in range(3))
    ahead = update_moments(**ours, backend="triton")
    torch.testing.assert_close(ahead, update_moments(**expected, backend="reference"), rtol=1e-5, atol=1e-6)
    assert_same(ours, expected, "first_moment", "second_moment")
    assert torch.equal(ours["second_moment"][:, :matrices], before["second_moment"][:, :matrices])
    assert torch.equal(ours["gradient"], before["gradient"])
    for name, value in (("step", 5.0), ("active", [1.0, 0.0, 1.0]), ("steps_taken", [5.0, 2.0, 5.0])):
        assert ours[name].tolist() == expected[name].tolist() == value, name


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_replica_without_a_finite_norm_is_frozen(device, backend, bad):
    arguments, clean = for_moments(device, 700), for_moments(device, 700)
    arguments["gradient"][2, 4500] = bad
    update_moments(**arguments, backend=backend)
    update_moments(**clean, backend=backend)
    assert arguments["active"].tolist() == [1, 0, 0] and arguments["steps_taken"].tolist() == [5, 2, 4]
    for name in ("first_moment", "second_moment"):
        assert torch.equal(arguments[name][:2], clean[name][:2])


def test_replicas_may_have_scales_of_their_own(device):
    ours, row = (for_parameters(device, 700) for _ in range(2))
    ours["column_scale"] = ours["column_scale"] * torch.tensor([[1.0], [2.0], [3.0]], device=device)
    update_parameters(**ours, backend="triton")
    row["column_scale"] *= 3.0
    update_parameters(**row, backend="reference")
    torch.testing.assert_close(ours["parameters"][2], row["parameters"][2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("matrices", "step"), [(0, 1.0), (700, 4.0), (1100, float(STEPS)), (SIZE, STEPS + 3.0)])
def test_parameters_are_the_references(device, matrices, step):
    ours, expected, before = (for_parameters(device, matrices, step) for _ in range(3))
    update_parameters(**ours, backend="triton")
    update_parameters(**expected, backend="reference")
    assert_same(ours, expected, "parameters")
    assert (ours["parameters"][::2] != before["parameters"][::2]).float().mean() > 0.99
    for name in ("first_moment", "second_moment", "polar"):
        assert torch.equal(ours[name], before[name])


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_frozen_replica_keeps_its_parameters_whatever_it_holds(device, backend):
    ours, before, clean = (for_parameters(device, 700) for _ in range(3))
    update_parameters(**clean, backend=backend)
    for name in ("polar", "first_moment", "second_moment"):
        ours[name][1] = math.nan
    update_parameters(**ours, backend=backend)
    assert torch.equal(ours["parameters"][1], before["parameters"][1])
    assert torch.equal(ours["parameters"][::2], clean["parameters"][::2])


@pytest.mark.parametrize(("programs", "block"), [(1, 4096), (3, 512), (4, 512)])
def test_norms_of_more_columns_than_one_block_a_program(device, monkeypatch, programs, block):
    """Programs of 2, 4 and 3 blocks, of which some programs have one fewer; the results do not depend on that."""
    from mixerlab.kernels.optimizer.population_step import triton_kernels

    ours, expected = for_moments(device, 700), for_moments(device, 700)
    update_moments(**expected, backend="reference")
    monkeypatch.setattr(triton_kernels, "NORM_PROGRAMS", programs)
    monkeypatch.setattr(triton_kernels, "NORM_BLOCK", block)
    update_moments(**ours, backend="triton")
    assert_same(ours, expected, "first_moment", "second_moment")
