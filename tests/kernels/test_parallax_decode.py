"""Decoding over a cache: against float64 from the formula, and against the whole sequence at once."""

import cases
import pytest
import torch

from mixerlab.kernels.parallax import parallax_attention
from mixerlab.kernels.parallax.decode import parallax_decode

gpu = pytest.mark.gpu


def draw(batch, tokens, heads, kv_heads, cache_len, head_dim, device="cpu", dtype=torch.float32):
    shapes = [(batch, tokens, heads, head_dim)] * 2 + [(batch, cache_len, kv_heads, head_dim)] * 2
    return cases.draw(*shapes, device=device, dtype=dtype)


def exact(tensors, **options):
    return parallax_decode(*(x.double() for x in tensors), backend="reference", **options)


def assert_close(tensors, tolerance=1e-5, **options):
    got = parallax_decode(*tensors, backend="triton", **options)
    assert got.dtype == tensors[0].dtype
    cases.check([got], [exact(tensors, **options)], tolerance)
    return got


@pytest.mark.parametrize("window", [None, 1, 40])
@pytest.mark.parametrize("tokens", [1, 3])
def test_it_is_the_end_of_the_whole_sequence(tokens, window):
    """What a token of a cache sees is what it sees in training."""
    q, rho, k, v = draw(2, 90, 4, 2, 90, 16, dtype=torch.float64)
    whole = parallax_attention(q, rho, k, v, window=window, backend="reference")
    end = parallax_decode(q[:, -tokens:], rho[:, -tokens:], k, v, window=window, backend="reference")
    torch.testing.assert_close(end, whole[:, -tokens:], rtol=0, atol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "kv_heads", "cache_len", "head_dim"),
    [(1, 1, 2, 2, 40, 16), (1, 1, 1, 1, 1200, 16), (2, 3, 4, 2, 300, 20), (1, 8, 4, 1, 90, 128), (1, 1, 16, 1, 33, 8)],
)
@pytest.mark.parametrize("window", [None, 13])
def test_shapes(batch, tokens, heads, kv_heads, cache_len, head_dim, window, device):
    assert_close(draw(batch, tokens, heads, kv_heads, cache_len, head_dim, device), window=window)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("card", [1, 2])
def test_heads_that_fill_the_card(card, device, monkeypatch):
    """Every head's cache is one part, which nothing merges, in large tiles or small ones."""
    from mixerlab.kernels.parallax.decode import operator

    monkeypatch.setattr(operator, "processors", lambda device: card)
    assert_close(draw(2, 1, 2, 2, 150, 16, device))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("window", [None, 50])
def test_what_lies_beyond_a_sequence_has_no_effect(window, device):
    """Sequences of all lengths, an empty one too; the caches hold NaN and infinity behind them.

    The lengths are a column of a table.
    """
    tensors = draw(6, 2, 2, 1, 200, 32, device)
    lengths = torch.tensor([200, 0, 1, 2, 65, 199], dtype=torch.int32, device=device).expand(2, 6).T.contiguous()[:, 0]
    for number, length in enumerate(lengths.tolist()):
        tensors[2][number, length:], tensors[3][number, length:] = torch.nan, torch.inf
    output = assert_close(tensors, lengths=lengths, window=window)
    assert not output[1].any() and not output[2, 0].any()  # an empty sequence; a token before its start


def test_strides_and_scale(device):
    q, rho, k, v = draw(2, 1, 4, 4, 100, 16, device)
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    assert_close([q, rho, k, v], scale=-0.3)


def test_sharp_logits_and_large_probes(device):
    """One key has all the weight, and the covariance is the difference of large numbers."""
    q, rho, k, v = draw(1, 1, 1, 1, 500, 32, device)
    assert_close([40 * q, 40 * rho, k, v], tolerance=1e-4)


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("batch", "cache_len", "head_dim"), [(1, 512, 128), (1, 16384, 128), (32, 4096, 64)])
def test_half_precision(batch, cache_len, head_dim, dtype):
    assert_close(draw(batch, 1, 8, 8, cache_len, head_dim, "cuda", dtype), 2e-2 if dtype == torch.bfloat16 else 3e-3)


@gpu
def test_a_graph_replays_over_growing_lengths_and_new_inputs():
    """A thousand replays, the same bits for the same input, and on two streams at once."""
    tensors = draw(2, 1, 8, 2, 2048, 128, "cuda", torch.bfloat16)
    lengths = torch.ones(2, dtype=torch.int32, device="cuda")
    graphs, outputs = [], []
    for _ in range(2):
        parallax_decode(*tensors, lengths=lengths)
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            outputs.append(parallax_decode(*tensors, lengths=lengths))
    streams = [torch.cuda.Stream() for _ in graphs]
    for step in range(1000):
        lengths.fill_(1 + 2 * step)
        tensors[0].normal_()
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(*outputs)
        if step % 100 == 0:
            cases.check(outputs[:1], [exact(tensors, lengths=lengths)], 2e-2)
