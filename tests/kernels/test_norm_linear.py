"""Residual addition, norm and head in one operator, against the formula in float64: the result and every gradient."""

import pytest
import torch
from formulas import EPS, plain_norm
from fused_cases import (
    BACKENDS,
    BFLOAT16,
    check,
    check_close,
    check_replicas,
    double,
    draw,
    run,
    same_bits_and_close,
    traced_as_they_run,
)

from mixerlab.kernels.fused import norm_linear


def plain(x, y, gain, weight, bias):
    total = x if y is None else x + y
    return plain_norm(total, gain) @ weight.T + bias


def inputs(rows, width, outputs, device) -> list[torch.Tensor]:
    shape = (*rows, width)
    return draw(shape, shape, (width,), (outputs, width), (outputs,), device=device)


# (groups of) rows, width, outputs: whole tiles, parts of one, and the widest that the kernel takes.
SHAPES = [((4, 16), 128, 16), ((2, 37), 24, 5), ((9,), 24, 38), ((1,), 3, 1), ((33,), 128, 128), ((0, 3), 8, 4)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows, width, outputs", SHAPES, ids=str)
def test_norm_linear(device, rows, width, outputs, backend):
    given = inputs(rows, width, outputs, device)
    check_close(lambda *a: norm_linear(*a, EPS, backend=backend), plain, given)


@pytest.mark.parametrize("backend", BACKENDS)
def test_norm_linear_without_an_update(device, backend):
    x, _, *parameters = inputs((2, 37), 24, 5, device)
    given = [x, *parameters]
    check_close(lambda x, *a: norm_linear(x, None, *a, EPS, backend=backend), lambda x, *a: plain(x, None, *a), given)


def test_programs_that_take_several_steps(device, monkeypatch):
    """As for many rows: the programs of one multiprocessor share 150 of them in tiles of at most 64."""
    from mixerlab.kernels.fused.norm_linear import operator

    monkeypatch.setattr(operator, "processors", lambda device: 1)
    for outputs in (20, 40):
        given = inputs((150,), 16, outputs, device)
        check_close(lambda *a: norm_linear(*a, EPS, backend="triton"), plain, given)


def test_norm_linear_under_vmap(device):
    """Weights are columns of one tensor of all parameters, at a place that no vector load can use; rows are strided."""
    tensors = draw((3, 2, 9, 16), (3, 2, 9, 8), (3, 80), device=device)

    def of_parameters(x, y, parameters):
        gain, weight, bias = parameters[1:9], parameters[9:49].unflatten(0, (5, 8)), parameters[51:56]
        return norm_linear(x[..., ::2], y, gain, weight, bias, EPS, backend="triton")

    check_replicas(of_parameters, tensors)
    check_replicas(lambda x, parameters: of_parameters(x, None, parameters), [tensors[0], tensors[2]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_update_in_another_dtype(device, backend):
    x, y, *parameters = inputs((40,), 16, 4, device)
    given = [x, y.bfloat16(), *parameters]
    with traced_as_they_run():
        actual = run(lambda *a: norm_linear(*a, EPS, backend=backend), given)
    assert [t.dtype for t in actual] == [torch.float32, torch.float32, torch.bfloat16, *[torch.float32] * 3]
    check(actual, run(plain, double(given)), BFLOAT16)


@pytest.mark.gpu
@pytest.mark.parametrize("stream", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "rows, width, outputs",
    [((128, 128), 128, 16), ((70, 33), 128, 48), ((9, 70), 96, 50), ((3, 700), 96, 129), ((70, 33), 128, 128)],
)
def test_norm_linear_in_bfloat16(device, rows, width, outputs, stream):
    """A stream, a bfloat16 update, and float32 parameters that autocast rounds for the product."""
    x, y, *parameters = inputs(rows, width, outputs, device)

    def of_rounded(x, y, *others):
        with torch.autocast("cuda", torch.bfloat16):
            return norm_linear(x, y, *others, EPS)

    same_bits_and_close(of_rounded, plain, [x.to(stream), y.bfloat16(), *parameters])
    same_bits_and_close(
        lambda x, *a: of_rounded(x, None, *a), lambda x, *a: plain(x, None, *a), [x.to(stream), *parameters]
    )
