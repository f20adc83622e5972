"""The kernel against PyTorch; what the optimizers make of it is tested in tests/training."""

import math

import pytest
import torch

from kernels.population_step import population_step

REPLICAS, SIZE = 3, 1500  # more than one block of columns, and a part of one


def draw(device, matrices):
    """Keyword arguments of a step in the middle of a training, whose second replica is frozen."""
    generator = torch.Generator().manual_seed(matrices)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device)

    return {
        "parameters": normal(REPLICAS, SIZE),
        "gradient": normal(REPLICAS, SIZE),
        "polar": normal(REPLICAS, matrices),
        "first_moment": normal(REPLICAS, SIZE),
        "second_moment": normal(REPLICAS, SIZE).square(),
        "lr": torch.tensor([0.1, 0.2, 0.03], device=device),
        "column_scale": normal(SIZE).abs(),
        "decay": torch.tensor(0.3, device=device),
        "decayed": 700,
        "clip": torch.tensor([1.0, 0.5, 0.01], device=device),
        "active": torch.tensor([1.0, 0.0, 1.0], device=device),
        "betas": (0.8, 0.95),
        "bias_correction": torch.tensor([0.36, 0.1], device=device),
        "eps": 1e-7,
    }


WRITTEN = ("parameters", "first_moment", "second_moment")


@pytest.mark.parametrize("matrices", [0, 700, 1100, SIZE])
def test_triton_is_the_reference(device, matrices):
    ours, expected, before = (draw(device, matrices) for _ in range(3))
    population_step(**ours, backend="triton")
    population_step(**expected, backend="reference")
    for name in WRITTEN:
        torch.testing.assert_close(ours[name], expected[name], rtol=1e-5, atol=1e-6)
    assert torch.equal(ours["first_moment"][:, :matrices], before["first_moment"][:, :matrices])
    assert (ours["parameters"][::2] != before["parameters"][::2]).all()


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_frozen_replica_keeps_its_parameters_whatever_it_holds(device, backend):
    ours, before = draw(device, 700), draw(device, 700)
    clean = draw(device, 700)
    population_step(**clean, backend=backend)
    for name in ("gradient", "polar", "clip", "first_moment"):
        ours[name][1] = math.nan
    population_step(**ours, backend=backend)
    assert torch.equal(ours["parameters"][1], before["parameters"][1])
    assert torch.equal(ours["parameters"][::2], clean["parameters"][::2])


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("gradient", torch.zeros(SIZE, REPLICAS).T, "gradient has strides"),
        ("polar", torch.zeros(REPLICAS, 10)[:, :5], "polar has strides"),
        ("second_moment", torch.zeros(REPLICAS, SIZE + 1), r"second_moment has shape \(3, 1501\): pass \(3, 1500\)"),
    ],
)
def test_refuses_what_does_not_fit(name, tensor, message):
    with pytest.raises(ValueError, match=message):
        population_step(**draw("cpu", 5) | {name: tensor})
