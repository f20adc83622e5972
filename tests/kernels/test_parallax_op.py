"""Everything around the Parallax kernels: argument checks, dispatch, vmap, compile, graphs, one derivative."""

from functools import partial

import pytest
import torch
from parallax_cases import draw, run

from mixerlab.kernels.parallax import parallax_attention, parallax_backend

triton_attention = partial(parallax_attention, backend="triton")


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


def test_replicas_under_vmap(device):
    """Stacked replicas that share rho and v, with autograd outside, equal one call each."""
    draws = [draw(40, 16, heads=2, kv_heads=1, batch=1, device=device) for _ in range(2)]
    shared = 1, 3
    tensors = [torch.stack(x) if i not in shared else x[0] for i, x in enumerate(zip(*draws, strict=True))]
    got = run(torch.func.vmap(triton_attention, in_dims=(0, None, 0, None)), tensors)
    singles = [run(triton_attention, [x if i in shared else x[r] for i, x in enumerate(tensors)]) for r in range(2)]
    for i, x in enumerate(got):
        one_by_one = [single[i] for single in singles]
        expected = sum(one_by_one) if i - 1 in shared else torch.stack(one_by_one)
        torch.testing.assert_close(x, expected)


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
