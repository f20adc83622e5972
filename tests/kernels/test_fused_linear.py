"""The linear layer's product against float64: result and both gradients, the long sum split in many ways."""

import math

import pytest
import torch
import torch.nn.functional as F
from fused_cases import BACKENDS, BFLOAT16, check, check_replicas, double, draw, run
from torch import Tensor

from mixerlab.kernels.fused import linear
from mixerlab.kernels.fused.linear.operator import weight_gradient


def value_and_gradients(function, x, weight, grad) -> list[Tensor]:
    """The result, and the gradients of `x` and `weight`."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = function(x, weight)
    return [y.detach(), *torch.autograd.grad(y, (x, weight), grad)]


def plain(x, weight, grad) -> list[Tensor]:
    x, weight, grad = x.double(), weight.double(), grad.double()
    return [x @ weight.T, grad @ weight, grad.flatten(0, -2).T @ x.flatten(0, -2)]


@pytest.fixture
def only_our_kernel(monkeypatch):
    """Makes a weight gradient by PyTorch an error."""

    def refuse(*_):
        raise AssertionError("the weight gradient was not split")

    monkeypatch.setattr(torch, "bmm", refuse)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows", [(2, 150), (300,), (7,), (), (0, 3)], ids=str)
@pytest.mark.parametrize("outputs, inputs", [(40, 24), (1, 1)])
def test_linear(device, rows, outputs, inputs, backend):
    x, weight, grad = draw((*rows, inputs), (outputs, inputs), (*rows, outputs), device=device)
    expected = plain(x.view(-1, inputs), weight, grad.view(-1, outputs))
    shapes = grad.shape, x.shape, weight.shape
    actual = value_and_gradients(lambda x, w: linear(x, w, backend=backend), x, weight, grad)
    check(actual, [e.view(shape) for e, shape in zip(expected, shapes, strict=True)])


# Rows, outputs, inputs: whole tiles of 64 x 64, tiles cut on both sides, sizes that no vector load can use.
SIZES = [(256, 64, 64), (300, 130, 72), (270, 7, 65), (500, 8, 3)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("programs, sum_parts", [(4, 64), (132, 2)])
@pytest.mark.parametrize("rows, outputs, inputs", SIZES)
def test_weight_gradients_in_parts(device, rows, outputs, inputs, programs, sum_parts, only_our_kernel, monkeypatch):
    """Two groups; grad and x are columns of wider tensors. With few programs each takes many steps, as do the sums."""
    from mixerlab.kernels.fused.linear import operator

    tiles = -(-outputs // 64) * -(-inputs // 64)
    monkeypatch.setattr(operator, "processors", lambda device: programs * tiles)
    monkeypatch.setattr("mixerlab.kernels.common.triton_sums.TILES", ((math.inf, sum_parts, 64),))
    wide_grad, wide_x = draw((2, rows, outputs + 8), (2, rows, 2 * inputs + 1), device=device)
    grad, x = wide_grad[..., 8:], wide_x[..., inputs + 1 :]
    actual = weight_gradient(grad, x)
    for group in range(2):
        check([actual[group]] * 3, [grad[group].double().T @ x[group].double()] * 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_linear_under_vmap(device, backend):
    """Each replica gets the same as by itself: with its weights among other parameters, and with shared ones."""
    x, parameters, grad = draw((3, 2, 150, 24), (3, 500), (3, 2, 150, 16), device=device)

    def of_parameters(x, parameters):
        return linear(x[..., :12], parameters[3:195].unflatten(0, (16, 12)), backend=backend)

    together = value_and_gradients(torch.func.vmap(of_parameters), x, parameters, grad)
    for r in range(3):
        single = value_and_gradients(of_parameters, x[r], parameters[r], grad[r])
        check([t[r] for t in together], double(single))
    shared = value_and_gradients(torch.func.vmap(of_parameters, (0, None)), x, parameters[0], grad)
    check(shared, double(value_and_gradients(of_parameters, x, parameters[0], grad)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_linear_with_a_bias(device, backend):
    inputs = draw((3, 2, 70, 24), (3, 17, 24), (3, 17), device=device)

    def with_bias(x, weight, bias):
        return linear(x, weight, bias, backend=backend)

    expected = run(lambda x, weight, bias: x @ weight.mT + bias, double([t[0] for t in inputs]))
    check(run(with_bias, [t[0] for t in inputs]), expected)
    check_replicas(with_bias, inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_linear_follows_autocast(device, backend):
    """As F.linear: a bfloat16 result, gradients in the dtypes of the inputs. Few rows: nothing is split."""
    x, weight, grad = draw((5, 8), (16, 8), (5, 16), device=device)
    with torch.autocast(device, torch.bfloat16):
        actual = value_and_gradients(lambda x, w: linear(x, w, backend=backend), x, weight, grad.bfloat16())
        expected = value_and_gradients(F.linear, x, weight, grad.bfloat16())
    assert [t.dtype for t in actual] == [t.dtype for t in expected] == [torch.bfloat16, torch.float32, torch.float32]
    check(actual, [t.double() for t in expected], BFLOAT16)


# Outputs and inputs of the models' products at width 128: output, q k v, gates of gdn, SwiGLU both ways, heads of small
# and large vocabularies, the step sizes of mamba.
SHAPES = [(128, 128), (384, 128), (520, 128), (704, 128), (128, 352), (4, 128), (129, 128), (8192, 128), (256, 8)]


@pytest.mark.gpu
@pytest.mark.parametrize("outputs, inputs", SHAPES)
@pytest.mark.parametrize("replicas, rows", [(3, 16384), (1, 4096), (9, 1000)])
def test_linear_in_bfloat16(device, replicas, rows, outputs, inputs):
    """Two runs agree bit for bit, and with float64 within the rounding of bfloat16."""
    if outputs == 8192 and rows == 16384:
        rows = 2048  # 16,384 rows of float64 logits are 3 GB
    shapes = (replicas, rows, inputs), (replicas, outputs, inputs), (replicas, rows, outputs)
    x, weight, grad = draw(*shapes, device=device, dtype=torch.bfloat16)
    first, second = (value_and_gradients(torch.func.vmap(linear), x, weight, grad) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    for r in range(replicas):
        check([t[r] for t in first], plain(x[r], weight[r], grad[r]), BFLOAT16)


@pytest.mark.gpu
def test_a_bias_is_rounded_with_the_product(device):
    x, weight, grad = draw((2, 700, 96), (2, 1000, 96), (2, 700, 1000), device=device, dtype=torch.bfloat16)
    (bias,) = draw((2, 1000), device=device)
    actual = run(torch.func.vmap(linear), [x, weight, bias], [grad])
    assert [t.dtype for t in actual] == [*[torch.bfloat16] * 3, torch.float32]
    double_inputs = double([x, weight, bias])
    check(actual, run(lambda x, w, b: x @ w.mT + b[:, None], double_inputs, [grad]), BFLOAT16)


@pytest.mark.gpu
def test_the_weight_gradient_adds_in_float32(device):
    """16,384 times 1 + 2^-7 is exact in float32; in bfloat16 the sum would stop at 256."""
    grad = torch.full((1, 16384, 64), 1 + 2**-7, device=device, dtype=torch.bfloat16)
    x = torch.ones(1, 16384, 128, device=device, dtype=torch.bfloat16)
    assert (weight_gradient(grad, x) == 16384 + 128).all()
