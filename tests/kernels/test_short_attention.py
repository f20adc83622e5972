"""Short sequences, one program each: Parallax and softmax attention against float64.

With float32 products in the interpreter, and through the public functions on a GPU, which take this path only for
16-bit inputs.
"""

import cases
import pytest
import torch
from cases import draw_attention as draw
from cases import replayed
from formulas import attention

from mixerlab.kernels.parallax import parallax_attention
from mixerlab.kernels.parallax.operator import is_short as is_short_parallax
from mixerlab.kernels.parallax.operator import parallax_short_forward
from mixerlab.kernels.parallax.reference import parallax_reference
from mixerlab.kernels.softmax_attention import MAX_HEAD_DIM, attention_backend, is_short, softmax_attention
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


def run(function, tensors):
    """For the output gradient that stands last."""
    return cases.run(function, tensors[:-1], tensors[-1:])


def check(kind, tensors, function=None, tolerance=None) -> None:
    short, _, formula, taken = KINDS[kind]
    tensors = [tensors[i] for i in taken]
    got = run(function or short, tensors)
    assert all(x.dtype == tensors[0].dtype for x in got)
    # At a length of one some gradients are zero.
    exact = run(formula, cases.double(tensors))
    cases.check(got, exact, tolerance or TOLERANCE[tensors[0].dtype], least=1, entries=1)


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
    if kind == "softmax" and head_dim > MAX_HEAD_DIM:
        pytest.skip("PyTorch's kernels compute these")
    # The gradients of one sequence of two may nearly cancel; those of eight do not all.
    tensors = draw(length, head_dim, batch=2 if length > 2 else 8, dtype=dtype, device=device)
    check(kind, tensors, KINDS[kind][1])


@gpu
@each_kind
def test_deterministic_also_in_a_cuda_graph_that_follows_new_inputs(kind, device):
    _, function, _, taken = KINDS[kind]
    tensors, fresh = ([draw(100, 64, batch=64, dtype=BF16, device=device)[i] for i in taken] for _ in range(2))
    expected = run(function, fresh)
    captured = replayed(lambda *x: run(function, x), tensors, fresh)
    assert all(torch.equal(x, y) for x, y in zip(captured, expected, strict=True))
