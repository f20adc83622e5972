"""The SwiGLU layer as one operator against float64: result and every gradient."""

import pytest
import torch
from fused_cases import BACKENDS, BFLOAT16, check, check_close, check_replicas, double, draw, run, same_bits_and_close

from mixerlab.kernels.fused import swiglu_mlp


def plain(x, gate_up, down):
    gate, up = (x @ gate_up.T).chunk(2, dim=-1)
    return (gate * torch.sigmoid(gate) * up) @ down.T


def sizes(rows, width, inner, replicas=()):
    return (*replicas, *rows, width), (*replicas, 2 * inner, width), (*replicas, width, inner)


# Whole tiles; tiles cut on all sides; sizes below the smallest of a product.
SIZES = [((2, 64), 128, 64), ((3, 23), 72, 52), ((5,), 4, 3), ((0, 3), 8, 16)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows, width, inner", SIZES, ids=str)
def test_swiglu_mlp(device, rows, width, inner, backend):
    inputs = draw(*sizes(rows, width, inner), device=device)
    check_close(lambda *a: swiglu_mlp(*a, backend=backend), plain, inputs)


def test_swiglu_mlp_of_strided_tensors_under_vmap(device):
    """Weights are columns of one tensor of all parameters."""
    x, parameters = draw((3, 2, 35, 48), (3, 1 + 3 * 20 * 24), device=device)

    def layer(x, parameters):
        gate_up, down = parameters[1:].split((2 * 20 * 24, 20 * 24))
        return swiglu_mlp(x[..., ::2], gate_up.unflatten(0, (40, 24)), down.unflatten(0, (24, 20)), backend="triton")

    check_replicas(layer, [x, parameters])


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=pytest.mark.gpu)])
def test_swiglu_mlp_follows_autocast(device, backend):
    inputs = draw(*sizes((70,), 24, 48), device=device)
    with torch.autocast(device, torch.bfloat16):
        actual = run(lambda *a: swiglu_mlp(*a, backend=backend), inputs)
    assert [t.dtype for t in actual] == [torch.bfloat16, *[torch.float32] * 3]
    check(actual, run(plain, double(inputs)), 2 * BFLOAT16)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rows, width, inner, scale",
    [(16384, 128, 352, 1), (4096, 64, 176, 1), (1000, 32, 96, 1), (777, 72, 200, 1), (500, 128, 352, 1000)],
    ids=str,
)
def test_swiglu_mlp_in_bfloat16(device, rows, width, inner, scale):
    """As close to float64 as three operators one by one, for gates of any size."""
    x, gate_up, down = draw(*sizes((rows,), width, inner, (3,)), device=device, dtype=torch.bfloat16)
    inputs = [scale * x, gate_up / 8, down / 8]
    same_bits_and_close(torch.func.vmap(swiglu_mlp), torch.func.vmap(plain), inputs, 2 * BFLOAT16)
