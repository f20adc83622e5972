"""Softmax attention of short sequences: against float64, with float32 products in the interpreter and through the
public function on a GPU, which takes this path only for 16-bit inputs."""

import pytest
import torch

from mixerlab.kernels.softmax_attention import attention_backend, is_short, softmax_attention
from mixerlab.kernels.softmax_attention.operator import short_attention

gpu = pytest.mark.gpu
BF16, FP16 = torch.bfloat16, torch.float16
TOLERANCE = {torch.float32: 1e-5, BF16: 1e-2, FP16: 2e-3}
LENGTHS = [1, 2, 17, 63, 64, 65, 127, 128]


@pytest.fixture(autouse=True)
def interpreter(device, request):
    if device == "cuda" and not request.node.get_closest_marker("gpu"):
        pytest.skip("full-precision products of these tiles do not fit a multiprocessor")


def draw(length, head_dim, *, batch=2, heads=2, dtype=torch.float32, device="cpu") -> list[torch.Tensor]:
    """q, k, v and the output's gradient `[batch, length, heads, head_dim]`."""
    return [torch.randn(batch, length, heads, head_dim, device=device).to(dtype) for _ in range(4)]


def run(attention, tensors) -> list[torch.Tensor]:
    """The output and the gradients of q, k and v."""
    *inputs, d_o = tensors
    leaves = [x.detach().requires_grad_() for x in inputs]
    o = attention(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, d_o)]


def formula(q, k, v):
    logits = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    seen = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return torch.einsum("bhij,bjhd->bihd", logits.masked_fill(~seen, -torch.inf).softmax(-1), v)


def check(attention, tensors) -> None:
    """Relative Frobenius and largest error of the output and every gradient."""
    tolerance = TOLERANCE[tensors[0].dtype]
    exact = run(formula, [x.double() for x in tensors])
    for name, got, expected in zip(("o", "dq", "dk", "dv"), run(attention, tensors), exact, strict=True):
        assert got.dtype == tensors[0].dtype
        difference = got.double() - expected
        # At a length of one, dq and dk are zero.
        size, largest = max(expected.norm(), 1), max(expected.abs().max(), 1)
        errors = (difference.norm() / size).item(), (difference.abs().max() / largest).item()
        assert max(errors) <= tolerance, (name, errors)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("head_dim", [8, 16, 48, 64])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length(length, head_dim, device):
    check(short_attention, draw(length, head_dim, batch=1, device=device))


def test_sharp_logits(device):
    q, k, v, d_o = draw(100, 16, batch=1, device=device)
    q, k = 30 * q, 30 * k
    o, *_ = run(short_attention, [q, k, v, d_o])
    torch.testing.assert_close(o.double(), formula(q.double(), k.double(), v.double()), rtol=0, atol=2e-3)


def test_strides(device):
    q, k, v, d_o = draw(70, 16, device=device)
    packed = torch.cat([k, v], dim=-1)
    q = q.transpose(1, 3).contiguous().transpose(1, 3)
    check(short_attention, [q, packed[..., :16], packed[..., 16:], d_o[:1, :1, :, :1].expand_as(d_o)])


def test_replicas_under_vmap(device):
    draws = [draw(20, 16, batch=1, device=device) for _ in range(3)]
    got = run(torch.func.vmap(short_attention), [torch.stack(x) for x in zip(*draws, strict=True)])
    for i, tensors in enumerate(draws):
        for x, single in zip(got, run(short_attention, tensors), strict=True):
            torch.testing.assert_close(x[i], single)


def test_second_derivative_is_refused(device):
    *inputs, d_o = draw(20, 16, batch=1, device=device)
    leaves = [x.requires_grad_() for x in inputs]
    (dq,) = torch.autograd.grad(short_attention(*leaves), leaves[0], d_o, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        dq.sum().backward()


def test_second_derivative_of_pytorchs_kernels_is_refused():
    *inputs, d_o = draw(20, 16, batch=1)
    leaves = [x.requires_grad_() for x in inputs]
    (dq,) = torch.autograd.grad(softmax_attention(*leaves), leaves[0], d_o, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        dq.sum().backward()


def test_what_is_short():
    on_gpu = torch.device("cuda")
    assert is_short(on_gpu, BF16, 128, 64)
    assert not is_short(on_gpu, BF16, 129, 64) and not is_short(on_gpu, BF16, 128, 65)
    assert not is_short(on_gpu, torch.float32, 128, 64) and not is_short(torch.device("cpu"), BF16, 128, 64)
    assert "128 positions" in attention_backend(on_gpu, BF16, 64)
    # Of these `torch` says that a compiler may take the mixer.
    assert attention_backend(on_gpu, BF16, 128) == attention_backend(on_gpu, torch.float32, 64) == "torch's attention"
    assert attention_backend(torch.device("cpu"), BF16, 64) == "torch"


@gpu
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("head_dim", [8, 12, 16, 32, 64, 128])
@pytest.mark.parametrize("length", [*LENGTHS, 129])
def test_every_length_on_a_gpu(length, head_dim, dtype, device):
    check(softmax_attention, draw(length, head_dim, dtype=dtype, device=device))


@gpu
def test_deterministic_also_in_a_cuda_graph(device):
    tensors = draw(100, 64, batch=64, dtype=BF16, device=device)
    first = run(softmax_attention, tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(softmax_attention, tensors)
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(first, captured, strict=True))
