"""PyTorch's attention under vmap: each replica's is what it is alone, forward and backward."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from mixerlab.kernels.softmax_attention import replicas_in_batch
from mixerlab.kernels.softmax_attention.operator import flash_attention

REPLICAS = 3
gpu = pytest.mark.gpu
BF16 = torch.bfloat16


def attention(q, k, v, mask=None, **options):
    return F.scaled_dot_product_attention(q, k, v, mask, **options)


def check(shapes, options, dims, *, dtype=torch.float32, device="cpu", compiled=False):
    """Outputs and gradients of the replicas under vmap, against those of each alone."""
    torch.manual_seed(0)
    leaves = [torch.randn(shape, device=device, dtype=dtype).requires_grad_() for shape in shapes]

    def one_replica(*inputs):
        return attention(*inputs, **options)

    def together(*inputs):
        return vmap(one_replica, in_dims=dims)(*inputs)

    if compiled:
        together = torch.compile(together, fullgraph=True, dynamic=False)
    with replicas_in_batch(), warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch's own rule on a CPU warns that it loops
        got = together(*leaves)
    alone = [
        one_replica(*(x if dim is None else x.select(dim, r) for x, dim in zip(leaves, dims, strict=True)))
        for r in range(REPLICAS)
    ]
    expected = torch.stack(alone)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == BF16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, expected, **tolerance)
    weight = torch.randn_like(expected)
    gradients = (torch.autograd.grad(out, leaves, weight) for out in (got, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, **tolerance)


CAUSAL = {"is_causal": True}
HEADS = (REPLICAS, 2, 4, 8, 16)  # replicas, batch, heads, positions, head size


@pytest.mark.parametrize(
    ("shapes", "options", "dims"),
    [
        ([HEADS] * 3, CAUSAL, (0, 0, 0)),
        ([HEADS] * 3, {"is_causal": True, "scale": 0.3}, (0, 0, 0)),
        ([HEADS, (3, 2, 4, 9, 16), (3, 2, 4, 9, 16)], {}, (0, 0, 0)),
        ([HEADS, (3, 2, 2, 8, 16), (3, 2, 2, 8, 16)], {"is_causal": True, "enable_gqa": True}, (0, 0, 0)),
        ([(3, 8, 16)] * 3, CAUSAL, (0, 0, 0)),
        ([(3, 4, 8, 16)] * 3, CAUSAL, (0, 0, 0)),
        ([(3, 2, 5, 4, 8, 16)] * 3, {}, (0, 0, 0)),
        ([(2, 4, 8, 3, 16), HEADS, (2, 4, 8, 16)], {}, (3, 0, None)),
        ([*[HEADS] * 3, (3, 8, 8)], {}, (0, 0, 0, 0)),
        ([*[HEADS] * 3, (4, 8, 8)], {}, (0, 0, 0, None)),
        ([*[HEADS] * 3, (2, 1, 8, 8)], {}, (0, 0, 0, None)),
    ],
)
def test_each_replica_attends_as_alone(shapes, options, dims):
    check(shapes, options, dims)


def test_dropout_is_left_to_vmap_which_refuses_it():
    x = torch.randn(HEADS)
    with replicas_in_batch(), pytest.raises(RuntimeError, match="random"):
        vmap(lambda x: attention(x, x, x, dropout_p=0.1))(x)


@gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("length", [100, 200, 1024])
def test_each_replica_attends_as_alone_on_a_gpu(length, dtype, compiled):
    if compiled and dtype is torch.float32:
        pytest.skip("the compiler leaves float32 to PyTorch's batching rule")
    check([(REPLICAS, 4, 2, length, 64)] * 3, CAUSAL, (0, 0, 0), dtype=dtype, device="cuda", compiled=compiled)


@gpu
@pytest.mark.parametrize("length", [129, 1000])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_flash_attention_as_an_operator(length, head_dim):
    q, k, v = (torch.randn(2, length, 2, head_dim, device="cuda", dtype=BF16).requires_grad_() for _ in range(3))
    got, _ = flash_attention(q, k, v)
    heads_first = (x.transpose(1, 2).double() for x in (q, k, v))
    expected = attention(*heads_first, **CAUSAL).transpose(1, 2)
    weight = torch.randn_like(got)
    torch.testing.assert_close(got.double(), expected, rtol=2e-2, atol=2e-2)
    gradients = torch.autograd.grad(got, (q, k, v), weight), torch.autograd.grad(expected, (q, k, v), weight.double())
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
