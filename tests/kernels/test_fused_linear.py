"""The linear layer's product against float64: result and both gradients, the long sum split in many ways."""

import math

import pytest
import torch
import torch.nn.functional as F
from cases import BACKENDS, BFLOAT16, check, double, draw, run

from mixerlab.kernels.common.triton_sums import sum_parts
from mixerlab.kernels.fused import linear
from mixerlab.kernels.fused.linear.operator import weight_gradient


def plain(x, weight):
    return x @ weight.T


# Rows, outputs, inputs: whole tiles of 64 x 64, tiles cut on both sides, sizes that no vector load can use.
SIZES = [(256, 64, 64), (300, 130, 72), (270, 7, 65), (500, 8, 3)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("programs, parts", [(4, 64), (132, 2)])
@pytest.mark.parametrize("rows, outputs, inputs", SIZES)
def test_weight_gradients_in_parts(device, rows, outputs, inputs, programs, parts, monkeypatch):
    """Two groups; grad and x are columns of wider tensors. With few programs each takes many steps, as do the sums."""
    from mixerlab.kernels.fused.linear import operator

    monkeypatch.setattr(torch, "bmm", None)  # nothing is left to PyTorch
    tiles = -(-outputs // 64) * -(-inputs // 64)
    monkeypatch.setattr(operator, "processors", lambda device: programs * tiles)
    monkeypatch.setattr("mixerlab.kernels.common.triton_sums.TILES", ((math.inf, parts, 64),))
    wide_grad, wide_x = draw((2, rows, outputs + 8), (2, rows, 2 * inputs + 1), device=device)
    grad, x = wide_grad[..., 8:], wide_x[..., inputs + 1 :]
    actual = weight_gradient(grad, x)
    check([actual], [grad.double().mT @ x.double()])


def test_many_parts_are_summed_in_two_steps(device):
    (parts,) = draw((2, 1056, 5), device=device)
    check([sum_parts(parts, torch.float32)], [parts.double().sum(1)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_linear_follows_autocast(device, backend):
    """As F.linear: a bfloat16 result, gradients in the dtypes of the inputs. Few rows: nothing is split."""
    given = draw((5, 8), (16, 8), device=device)
    with torch.autocast(device, torch.bfloat16):
        actual = run(lambda x, w: linear(x, w, backend=backend), given)
        expected = run(F.linear, given)
    assert [t.dtype for t in actual] == [t.dtype for t in expected] == [torch.bfloat16, torch.float32, torch.float32]
    check(actual, expected, BFLOAT16)


# Outputs and inputs of the models' products at width 128: output, q k v, gates of gdn, SwiGLU both ways, heads of small
# and large vocabularies, the step sizes of mamba.
SHAPES = [(128, 128), (384, 128), (520, 128), (704, 128), (128, 352), (4, 128), (129, 128), (8192, 128), (256, 8)]


@pytest.mark.gpu
@pytest.mark.parametrize("outputs, inputs", SHAPES)
@pytest.mark.parametrize("replicas, rows", [(3, 16384), (1, 4096), (9, 1000)])
def test_linear_in_bfloat16(device, replicas, rows, outputs, inputs):
    if outputs == 8192 and rows == 16384:
        rows = 2048  # 16,384 rows of float64 logits are 3 GB
    shapes = (replicas, rows, inputs), (replicas, outputs, inputs), (replicas, rows, outputs)
    x, weight, grad = draw(*shapes, device=device, dtype=torch.bfloat16)
    first, second = (run(torch.func.vmap(linear), [x, weight], [grad]) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    for r in range(replicas):
        check([t[r] for t in first], run(plain, double([x[r], weight[r]]), [grad[r]]), BFLOAT16)


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
