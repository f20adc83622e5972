"""The fused operators against their plain formulas in float64: results and every gradient."""

import pytest
import torch
from formulas import EPS, plain_norm
from fused_cases import (
    BACKENDS,
    BFLOAT16,
    FLOAT32,
    check,
    check_close,
    check_replicas,
    double,
    draw,
    run,
    same_bits_and_close,
    traced_as_they_run,
)

from mixerlab.kernels.fused import add_rms_norm, embedding, gated_rms_norm, rms_norm, swiglu, swiglu_packed


def plain_add_norm(x, y, weight):
    return x + y, plain_norm(x + y, weight)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(17, 96), (2, 3, 128), (40, 1024), (1, 3)], ids=str)
def test_rms_norm(device, shape, backend):
    inputs = draw(shape, shape[-1:], device=device)
    check_close(lambda x, w: rms_norm(x, w, EPS, backend=backend), plain_norm, inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(17, 96), (2, 3, 128)], ids=str)
def test_add_rms_norm(device, shape, backend):
    inputs = draw(shape, shape, shape[-1:], device=device)
    check_close(lambda x, y, w: add_rms_norm(x, y, w, EPS, backend=backend), plain_add_norm, inputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("used", [[0], [1], [0, 1]], ids=str)
def test_add_rms_norm_of_nothing(device, used, backend):
    """The stream also goes past the norm: its gradient is the sum of both, or the only one that exists."""

    def with_inputs(norm):  # both inputs are used, even if no result is
        return lambda x, w: [norm(x, w)[i] for i in used] + [x * w.mean()]

    inputs = draw((5, 17, 24), (24,), device=device)
    check_close(
        with_inputs(lambda x, w: add_rms_norm(x, None, w, EPS, backend=backend)),
        with_inputs(lambda x, w: (x, plain_norm(x, w))),
        inputs,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_add_rms_norm_of_two_dtypes(device, backend):
    """A float32 stream and a bfloat16 branch: the sum is float32, and each gradient has the dtype of its input."""
    x, y, weight = draw((5, 8), (5, 8), (8,), device=device)
    inputs = [x, y.bfloat16(), weight]
    with torch.autocast(device, torch.bfloat16), traced_as_they_run():
        actual = run(lambda *a: add_rms_norm(*a, EPS, backend=backend), inputs)
        assert rms_norm(x, weight, EPS, backend=backend).dtype == torch.bfloat16
    assert [t.dtype for t in actual] == [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16, torch.float32]
    check(actual, run(plain_add_norm, double(inputs)), BFLOAT16)


def test_norms_under_vmap(device):
    inputs = draw((3, 2, 9, 16), (3, 2, 9, 16), (3, 16), device=device)
    check_replicas(lambda x, y, w: add_rms_norm(x, y, w, EPS, backend="triton"), inputs)
    check_replicas(lambda x, w: rms_norm(x[:, ::2], w, EPS, backend="triton"), [inputs[0], inputs[2]])
    check_replicas(lambda x, w: add_rms_norm(x[:, ::2], None, w, EPS, backend="triton"), [inputs[0], inputs[2]])


def plain_swiglu(gate, up):
    return gate * torch.sigmoid(gate) * up


def plain_swiglu_packed(gate_up):
    return plain_swiglu(*gate_up.chunk(2, dim=-1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(17, 96), (2, 3, 8), (33, 1), (0, 3, 4)], ids=str)
def test_swiglu(device, shape, backend):
    inputs = draw(shape, shape, device=device)
    check_close(lambda *a: swiglu(*a, backend=backend), plain_swiglu, inputs)
    packed = [torch.cat(inputs, dim=-1)]
    check_close(lambda x: swiglu_packed(x, backend=backend), plain_swiglu_packed, packed)


def test_swiglu_of_strided_tensors_under_vmap(device):
    inputs = draw((3, 5, 7, 10), (3, 5, 7, 5), device=device)
    check_replicas(lambda x, up: swiglu(x[..., ::2], up, backend="triton"), inputs)
    check_replicas(lambda x: swiglu_packed(x[:, 1:, :6], backend="triton"), inputs[:1])


def plain_gated_norm(x, gate, weight, silu=True):
    return (gate if silu else 1) * torch.sigmoid(gate) * plain_norm(x, weight).flatten(-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("shape", [(2, 9, 3, 16), (1, 40, 2, 20), (3, 1, 1, 128)], ids=str)
def test_gated_rms_norm(device, shape, silu, backend):
    inputs = draw(shape, (*shape[:2], shape[2] * shape[3]), shape[3:], device=device)
    check_close(
        lambda *a: gated_rms_norm(*a, EPS, silu=silu, backend=backend), lambda *a: plain_gated_norm(*a, silu), inputs
    )


def test_gated_rms_norm_of_strided_tensors_under_vmap(device):
    """The gate is a part of a wider projection; each replica has its own weight."""
    inputs = draw((3, 2, 7, 2, 8), (3, 2, 7, 30), (3, 8), device=device)
    check_replicas(lambda x, packed, w: gated_rms_norm(x, packed[..., 10:26], w, EPS, backend="triton"), inputs)


# (groups of) rows, vocabulary, width. A tile of the backward is 64 rows by 64 tokens by 128 columns; with more than 256
# tokens PyTorch adds up the gradients.
TABLES = [((17,), 8, 96), ((2, 65), 100, 10), ((3,), 5, 200), ((2, 400), 300, 9)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows, vocabulary, width", TABLES, ids=str)
def test_embedding(device, rows, vocabulary, width, backend):
    tokens = torch.randint(vocabulary, rows, generator=torch.Generator().manual_seed(1)).to(device)
    inputs = [tokens, *draw((vocabulary, width), device=device)]
    check_close(lambda *a: embedding(*a, backend=backend), lambda tokens, weight: weight[tokens], inputs)


@pytest.mark.parametrize("most", [256, 4])
def test_embedding_under_vmap(device, most, monkeypatch):
    """Weights are columns of one tensor of all parameters, at a place that no vector load can use."""
    from mixerlab.kernels.fused.embedding import operator

    monkeypatch.setattr(operator, "MAX_VOCABULARY", most)
    tokens = torch.randint(6, (3, 2, 9), generator=torch.Generator().manual_seed(1)).to(device)
    parameters = draw((3, 61), device=device)

    def of_table(tokens, parameters):
        return embedding(tokens, parameters[1:31].unflatten(0, (6, 5)), backend="triton")

    check_replicas(of_table, [tokens, *parameters])


def test_weight_gradients_of_programs_that_take_several_steps(device, monkeypatch):
    """As for many rows: two programs share 70 rows of the norm in tiles of 16, and 130 tokens in steps of 64."""
    from mixerlab.kernels.fused.embedding import operator as embedding_operator
    from mixerlab.kernels.fused.rms_norm import operator as norm_operator

    monkeypatch.setattr(norm_operator, "processors", lambda device: 1)
    monkeypatch.setattr(norm_operator, "BACKWARD", (4, 2, 3))
    monkeypatch.setattr(embedding_operator, "BACKWARD_PROGRAMS", 2)
    monkeypatch.setattr(embedding_operator, "processors", lambda device: 1)
    inputs = draw((70, 128), (128,), device=device)
    check_close(lambda *a: rms_norm(*a, EPS, backend="triton"), plain_norm, inputs)
    tokens = torch.randint(8, (130,), generator=torch.Generator().manual_seed(1)).to(device)
    inputs = [tokens, *draw((8, 16), device=device)]
    check_close(lambda *a: embedding(*a, backend="triton"), lambda tokens, weight: weight[tokens], inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("rows, width", [((128, 128), 128), ((3, 700), 96), ((2, 2048), 1024)], ids=str)
def test_norm_and_swiglu_in_bfloat16(device, rows, width):
    x, y, up = draw((*rows, width), (*rows, width), (*rows, width), device=device, dtype=torch.bfloat16)
    (weight,) = draw((width,), device=device)
    same_bits_and_close(lambda *a: rms_norm(*a, EPS), plain_norm, [x, weight])
    with torch.autocast("cuda", torch.bfloat16):
        same_bits_and_close(lambda *a: add_rms_norm(*a, EPS), plain_add_norm, [x.float(), y, weight])
    same_bits_and_close(swiglu, plain_swiglu, [x, up])
    heads = x.unflatten(-1, (2, -1))
    same_bits_and_close(lambda *a: gated_rms_norm(*a, EPS), plain_gated_norm, [heads, up, weight[: width // 2]])
    same_bits_and_close(swiglu_packed, plain_swiglu_packed, [torch.cat((x, up), dim=-1)])


@pytest.mark.gpu
@pytest.mark.parametrize("rows, vocabulary", [((128, 128), 16), ((64, 32), 8192), ((3, 700), 129)], ids=str)
def test_embedding_in_bfloat16(device, rows, vocabulary):
    tokens = torch.randint(vocabulary, rows, generator=torch.Generator().manual_seed(1)).to(device)
    (weight,) = draw((vocabulary, 128), device=device)
    same_bits_and_close(embedding, lambda tokens, weight: weight[tokens], [tokens, weight.bfloat16()])
    same_bits_and_close(embedding, lambda tokens, weight: weight[tokens], [tokens, weight], FLOAT32)
