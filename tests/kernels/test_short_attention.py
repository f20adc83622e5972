"""Short sequences, one program each: Parallax and softmax attention against float64.

With float32 products in the interpreter, and through the public functions on a GPU, which take this path only for
16-bit inputs.
"""

import pytest
import torch
from formulas import attention
from parallax_cases import draw, run

from mixerlab.kernels.parallax import parallax_attention
from mixerlab.kernels.parallax.operator import is_short as is_short_parallax
from mixerlab.kernels.parallax.operator import parallax_short_forward
from mixerlab.kernels.parallax.reference import parallax_reference
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


def short_parallax(q, rho, k, v):
    return parallax_short_forward(q, rho, k, v, q.shape[-1] ** -0.5)


def exact_parallax(q, rho, k, v):
    return parallax_reference(q, rho, k, v, q.shape[-1] ** -0.5, None)


# The launch for short sequences, the public function, the formula, and which of q, rho, k, v, dO they take.
KINDS = {
    "parallax": (short_parallax, parallax_attention, exact_parallax, (0, 1, 2, 3, 4)),
    "softmax": (short_attention, softmax_attention, attention, (0, 2, 3, 4)),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def check(kind, tensors, function=None, tolerance=None) -> None:
    short, _, formula, taken = KINDS[kind]
    tensors = [tensors[i] for i in taken]
    tolerance = tolerance or TOLERANCE[tensors[0].dtype]
    exact = run(formula, [x.double() for x in tensors])
    for number, (got, expected) in enumerate(zip(run(function or short, tensors), exact, strict=True)):
        assert got.dtype == tensors[0].dtype
        difference = got.double() - expected
        # At a length of one some gradients are zero.
        size, largest = max(expected.norm(), 1), max(expected.abs().max(), 1)
        errors = (difference.norm() / size).item(), (difference.abs().max() / largest).item()
        assert max(errors) <= tolerance, (number, errors)


@each_kind
@pytest.mark.sampled(5)
@pytest.mark.parametrize("head_dim", [8, 48, 64, 128])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length(length, head_dim, kind, device):
    if kind == "softmax" and head_dim == 128:
        pytest.skip("PyTorch's kernels compute these")
    check(kind, draw(length, head_dim, batch=1 if length > 2 else 8, device=device))


@each_kind
def test_sharp_logits_and_large_probes(kind, device):
    """Each query attends to one key at logits in the thousands, with probes of norm 40: nothing cancels wrongly."""
    q, rho, k, v, d_o = draw(100, 32, batch=1, device=device)
    rho *= 40 / rho.norm(dim=-1, keepdim=True)
    q[..., 16:] /= 600
    k[:, 1::2, :, :16] = k[:, 0:99:2, :, :16]
    check(kind, [30 * q, rho, 30 * k, v, d_o], tolerance=2e-3)


@each_kind
def test_strides(kind, device):
    q, rho, k, v, d_o = draw(70, 16, batch=2, device=device)
    packed = torch.cat([k, v], dim=-1)
    tensors = [
        q.transpose(1, 2).contiguous().transpose(1, 2),
        rho.transpose(1, 3).contiguous().transpose(1, 3),
        packed[..., :16],
        packed[..., 16:],
        d_o[:1, :1, :, :1].expand_as(d_o),
    ]
    assert not any(x.is_contiguous() for x in tensors)
    check(kind, tensors)


@each_kind
def test_replicas_under_vmap(kind, device):
    short, *_, taken = KINDS[kind]
    draws = [[draw(20, 16, batch=1, device=device)[i] for i in taken] for _ in range(3)]
    got = run(torch.func.vmap(short), [torch.stack(x) for x in zip(*draws, strict=True)])
    singles = [run(short, tensors) for tensors in draws]
    for i, x in enumerate(got):
        torch.testing.assert_close(x, torch.stack([single[i] for single in singles]))


def test_what_is_short():
    x = torch.empty(2, 128, 4, 16, dtype=BF16)
    longer, shared, full = torch.empty(2, 129, 4, 16, dtype=BF16), x[:, :, :2], x.float()
    assert is_short_parallax(x, x, None)
    for q, k, window in ((longer, longer, None), (x, shared, None), (full, full, None), (x, x, 7)):
        assert not is_short_parallax(q, k, window)
    on_gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert is_short(on_gpu, BF16, 128, 64) and not is_short(on_gpu, BF16, 129, 64) and not is_short(cpu, BF16, 128, 64)
    assert "128 positions" in attention_backend(on_gpu, BF16, 64)
    # Of these `torch` says that a compiler may take the mixer.
    assert attention_backend(on_gpu, BF16, 128) == attention_backend(on_gpu, torch.float32, 64) == "torch's attention"
    assert attention_backend(cpu, BF16, 64) == "torch"


@gpu
@each_kind
@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
@pytest.mark.parametrize("head_dim", [8, 12, 16, 32, 64, 80, 128])
@pytest.mark.parametrize("length", [*LENGTHS, 129])
def test_every_length_on_a_gpu(length, head_dim, dtype, kind, device):
    # The gradients of one sequence of two may nearly cancel; those of eight do not all.
    tensors = draw(length, head_dim, batch=2 if length > 2 else 8, dtype=dtype, device=device)
    check(kind, tensors, KINDS[kind][1])


@gpu
@each_kind
def test_deterministic_also_in_a_cuda_graph_that_follows_new_inputs(kind, device):
    _, function, _, taken = KINDS[kind]
    tensors, fresh = ([draw(100, 64, batch=64, dtype=BF16, device=device)[i] for i in taken] for _ in range(2))
    run(function, tensors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(function, tensors)
    for x, new in zip(tensors, fresh, strict=True):
        x.copy_(new)
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(captured, run(function, tensors), strict=True))
