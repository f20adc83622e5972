"""Parallax by its kernels: against float64, on a CPU (interpreter) and on a GPU; dispatch, vmap, compile and graphs."""

from functools import partial

import cases
import pytest
import torch
from cases import draw_attention as draw

from mixerlab.kernels.parallax import parallax_attention, parallax_backend
from mixerlab.kernels.parallax.reference import parallax_reference
from mixerlab.kernels.parallax.triton_tiles import pair_descriptor

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
TOLERANCE = {BF16: 1e-2, FP16: 2e-3, FP32: 1e-5}
gpu = pytest.mark.gpu
triton_attention = partial(parallax_attention, backend="triton")
every_dtype = pytest.mark.parametrize(
    "dtype", [FP32, pytest.param(BF16, marks=gpu), pytest.param(FP16, marks=gpu)], ids=str
)


def run(function, tensors, **options):
    """For the output gradient that stands last."""
    return cases.run(partial(function, **options), tensors[:-1], tensors[-1:])


def assert_close(tensors, tolerance, *, scale=None, window=None) -> None:
    """The kernels within `tolerance` of float64, in norm and in every entry, of the output and every gradient."""
    got = run(triton_attention, tensors, scale=scale, window=window)
    assert all(x.dtype == tensors[0].dtype for x in got)
    scale = tensors[0].shape[-1] ** -0.5 if scale is None else scale
    cases.check(got, run(parallax_reference, cases.double(tensors), scale=scale, window=window), tolerance, entries=1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("head_dim", [8, 16, 48])
@pytest.mark.parametrize("length", [2, 17, 65])
def test_small_shapes(length, head_dim, device):
    assert_close(draw(length, head_dim, batch=1 if length > 2 else 8, device=device), TOLERANCE[FP32])


@gpu
@pytest.mark.parametrize("head_dim", [8, 16, 32, 48, 64, 80, 128])
@pytest.mark.parametrize("length", [2, 17, 63, 64, 65, 127, 500, 1024, 2048])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_every_shape(length, head_dim, dtype, device):
    # The gradients of one sequence of two may nearly cancel; those of eight do not all.
    tensors = draw(length, head_dim, batch=2 if length > 2 else 8, dtype=dtype, device=device)
    assert_close(tensors, TOLERANCE[dtype])


@every_dtype
@pytest.mark.parametrize(
    "length, window",
    [(70, 2), (70, 33), (100, 32), (70, 2**31 - 1), *(pytest.param(300, w, marks=gpu) for w in (3, 64, 190))],
)
def test_window(length, window, dtype, device):
    tensors = draw(length, 16, heads=1, kv_heads=1, batch=1 if dtype == FP32 else 8, dtype=dtype, device=device)
    # The rounding of two or three weights does not average out. Emulated in float64, it moves dQ by up to 1.5e-2 of its
    # largest element in bfloat16 (3,000 draws of eight sequences), and by more than 1e-2 in one draw of a hundred.
    few = window < 8 and dtype == BF16
    assert_close(tensors, TOLERANCE[dtype] * (2 if few else 1), window=window)


@every_dtype
@pytest.mark.parametrize(
    "length, kv_heads, options",
    [(40, 1, {}), (70, 2, {"scale": -0.3}), pytest.param(200, 1, {"scale": 0.5}, marks=gpu)],
)
def test_shared_key_heads_and_options(length, kv_heads, options, dtype, device):
    tensors = draw(length, 16, kv_heads=kv_heads, batch=1, dtype=dtype, device=device)
    assert_close(tensors, TOLERANCE[dtype], **options)


@every_dtype
@pytest.mark.parametrize("length", [70, pytest.param(200, marks=gpu)])
@pytest.mark.parametrize("head_dim", [16, 12])
def test_strides(length, head_dim, dtype, device):
    """Heads-first storage, slices of one packed projection, and a broadcast output gradient."""
    q, rho, _, _, d_o = draw(length, head_dim, batch=2, dtype=dtype, device=device)
    packed = torch.cat(draw(length, head_dim, batch=2, dtype=dtype, device=device)[:2], dim=-1)
    k, v = packed[..., :head_dim], packed[..., head_dim:]
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    odd_start = torch.cat([rho[..., :1], rho], dim=-1)[..., 1:]
    tensors = [heads_first, odd_start, k, v, d_o[:1, :1, :, :1].expand_as(d_o)]
    assert not any(x.is_contiguous() for x in tensors)
    assert_close(tensors, TOLERANCE[dtype])


@every_dtype
@pytest.mark.parametrize("behind", [True, False])
def test_views_of_one_projection(behind, dtype, device):
    """The backward reads q and rho where they are if rho lies behind q, and copies of them if not."""
    *parts, d_o = draw(140, 16, batch=1, dtype=dtype, device=device)
    q, k, v, rho = torch.stack(parts, dim=2).unbind(2)
    q, rho = (q, rho) if behind else (rho, q)
    assert (pair_descriptor(q, rho, 32).base is q) == behind
    assert_close([q, rho, k, v, d_o], TOLERANCE[dtype])


@every_dtype
@pytest.mark.parametrize("length", [70, pytest.param(200, marks=gpu)])
def test_large_probe(length, dtype, device):
    """Some five times as long as those of trained layers, whose norm is about sqrt(D) (results/text)."""
    tensors = draw(length, 64, batch=1, dtype=FP32, device=device)
    tensors[1] *= 40 / tensors[1].norm(dim=-1, keepdim=True)
    assert_close([x.to(dtype) for x in tensors], TOLERANCE[dtype])


@every_dtype
@pytest.mark.parametrize("length", [70, pytest.param(200, marks=gpu)])
def test_large_logits(length, dtype, device):
    """Logits in the thousands: a query looks at one pair of keys, which differ where the query is small.

    A float32 product of length 64 is off by some 8 x 2^-24 of the norms' product, its weight by as much, beside the
    rounding that all inputs have.
    """
    tensors = draw(length, 64, batch=1, dtype=FP32, device=device)
    q, k = tensors[0], tensors[2]
    q *= 30
    k *= 30
    q[..., 32:] /= 600
    k[:, 1::2, :, :32] = k[:, 0 : length - 1 : 2, :, :32]
    largest = (q.norm(dim=-1).max() * k.norm(dim=-1).max() / 8).item()
    assert_close([x.to(dtype) for x in tensors], TOLERANCE[dtype] + 8 * largest * 2**-24)


@every_dtype
@pytest.mark.parametrize("length", [70, pytest.param(200, marks=gpu)])
def test_no_probe_is_softmax_attention(length, dtype, device):
    q, _, k, v, d_o = draw(length, 16, batch=1, dtype=dtype, device=device)
    got = run(triton_attention, [q, torch.zeros_like(q), k, v, d_o])

    def softmax_attention(q, k, v):
        q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    expected = run(softmax_attention, [q, k, v, d_o.double()])
    del got[2]  # the probe has a gradient, softmax attention has no probe
    cases.check(got, expected, TOLERANCE[dtype])


@gpu
def test_deterministic(device):
    tensors = draw(1000, 64, heads=4, kv_heads=2, dtype=BF16, device=device)
    first, second = (run(triton_attention, tensors) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_agrees_with_fla(backend, window, device):
    naive = pytest.importorskip("fla.ops.parallax.naive").naive_parallax
    tensors = draw(40, 16, heads=4, kv_heads=2, batch=1, device=device)
    ours = run(parallax_attention, tensors, window=window, scale=0.3, backend=backend)
    theirs = run(naive, tensors, window_size=window, scale=0.3)
    cases.check(ours, theirs, 2e-5, entries=1)


def test_dispatch(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert parallax_backend(cuda, torch.bfloat16, 64) == "triton"
    assert parallax_backend(cuda, torch.bfloat16, 64, "reference") == "reference"
    assert parallax_backend(cuda, torch.float64, 64) == "reference"
    assert parallax_backend(cuda, torch.bfloat16, 256) == "reference"
    assert parallax_backend(cpu, torch.float32, 64) == "reference"
    with pytest.raises(ValueError, match="device='cpu' is not an NVIDIA GPU"):
        parallax_backend(cpu, torch.float32, 64, "triton")
    with pytest.raises(ValueError, match=r"dtype=torch\.float64"):
        parallax_backend(cuda, torch.float64, 64, "triton")
    with pytest.raises(ValueError, match="head dim 129"):
        parallax_backend(cuda, torch.bfloat16, 129, "triton")


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
def test_compiles_without_a_break(compiler, device):
    tensors = draw(40, 16, batch=1, device=device)

    def layer(q, rho, k, v):
        return 2 * triton_attention(q, rho, k, v, window=9)

    compiled = torch.compile(layer, fullgraph=True, backend=compiler)
    for x, y in zip(run(compiled, tensors), run(layer, tensors), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [100, 300])
def test_cuda_graph_beside_a_living_output(length, device):
    """The graph of an earlier call on another stream is alive, and with it that stream, which joins the capture.

    Not the default stream, which no capture of any PyTorch operation can use (`kernels/common/registration.py`).
    """
    *inputs, d_o = draw(length, 64, dtype=torch.bfloat16, device=device)
    leaves = [x.requires_grad_() for x in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        eager = triton_attention(*leaves)
        expected = torch.autograd.grad(eager, leaves, d_o, retain_graph=True)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = triton_attention(*leaves)
        captured = torch.autograd.grad(o, leaves, d_o)
    graph.replay()
    for x, y in zip((o, *captured), (eager, *expected), strict=True):
        assert torch.equal(x, y)
