"""The fused operators against their plain formulas in float64: results and every gradient."""

from functools import partial

import pytest
import torch
from cases import BACKENDS, BFLOAT16, check, check_close, double, draw, run, same_bits, traced
from formulas import EPS, convolution, plain_norm

from mixerlab.kernels import fused
from mixerlab.kernels.fused.embedding import operator as embedding_operator
from mixerlab.kernels.fused.rms_norm import operator as norm_operator
from mixerlab.kernels.short_convolution import short_convolution

each_backend = pytest.mark.parametrize("backend", BACKENDS)


def plain_add_norm(x, y, weight):
    return x + y, plain_norm(x + y, weight)


def plain_swiglu(gate, up):
    return gate * torch.sigmoid(gate) * up


def plain_swiglu_packed(gate_up):
    return plain_swiglu(*gate_up.chunk(2, dim=-1))


def plain_mlp(x, gate_up, down):
    return plain_swiglu_packed(x @ gate_up.T) @ down.T


def plain_linear(x, weight, bias=0):
    return x @ weight.T + bias


def plain_embedding(tokens, weight):
    return weight[tokens]


def at_eps(function):
    return lambda *inputs, **options: function(*inputs, EPS, **options)


def mlp_shapes(rows, width, inner, replicas=()):
    return (*replicas, *rows, width), (*replicas, 2 * inner, width), (*replicas, width, inner)


def linear_shapes(rows, outputs, inputs):
    return (*rows, inputs), (outputs, inputs)


def convolution_shapes(batch, length, channels, taps):
    return (batch, length, channels), (channels, taps), (channels,)


NORMS = [(17, 96), (2, 3, 128)]
SWIGLU = [(17, 96), (2, 3, 8), (33, 1), (0, 3, 4)]
# Whole tiles; tiles cut on all sides; sizes below the smallest of a product.
MLP = [((2, 64), 128, 64), ((3, 23), 72, 52), ((5,), 4, 3), ((0, 3), 8, 16)]
LINEAR = [(rows, *sizes) for sizes in ((40, 24), (1, 1)) for rows in ((2, 150), (300,), (7,), (), (0, 3))]
CONVOLUTION = [(1, 1, 3, 4), (2, 17, 5, 2), (1, 32, 3, 3), (1, 33, 130, 4), (1, 3, 4, 1)]  # a program takes 64 channels
OPERATORS = {  # with the formula, the shapes of the inputs, and the sizes that these depend on
    "rms_norm": (at_eps(fused.rms_norm), plain_norm, lambda *s: (s, s[-1:]), [*NORMS, (40, 1024), (1, 3)]),
    "add_rms_norm": (at_eps(fused.add_rms_norm), plain_add_norm, lambda *s: (s, s, s[-1:]), NORMS),
    "swiglu": (fused.swiglu, plain_swiglu, lambda *s: (s, s), SWIGLU),
    "swiglu_packed": (fused.swiglu_packed, plain_swiglu_packed, lambda *s: ((*s[:-1], 2 * s[-1]),), SWIGLU),
    "swiglu_mlp": (fused.swiglu_mlp, plain_mlp, mlp_shapes, MLP),
    "linear": (fused.linear, plain_linear, linear_shapes, LINEAR),
    "linear with a bias": (fused.linear, plain_linear, lambda *s: (*linear_shapes(*s), s[1:2]), LINEAR[:3]),
    "short_convolution": (short_convolution, convolution, convolution_shapes, CONVOLUTION),
}


CASES = [(name, sizes) for name, (*_, cases) in OPERATORS.items() for sizes in cases]


@each_backend
@pytest.mark.parametrize(("name", "sizes"), CASES, ids=str)
def test_equals_the_formula(device, name, sizes, backend):
    function, plain, shapes, _ = OPERATORS[name]
    tolerance = {"tolerance": 1e-6} if name == "short_convolution" else {}
    check_close(partial(function, backend=backend), plain, draw(*shapes(*sizes), device=device), **tolerance)


@each_backend
@pytest.mark.parametrize("used", [[0], [1], [0, 1]], ids=str)
def test_add_rms_norm_of_nothing(device, used, backend):
    """The stream also goes past the norm: its gradient is the sum of both, or the only one that exists."""

    def with_inputs(norm):  # both inputs are used, even if no result is
        return lambda x, w: [norm(x, w)[i] for i in used] + [x * w.mean()]

    ours = with_inputs(lambda x, w: fused.add_rms_norm(x, None, w, EPS, backend=backend))
    check_close(ours, with_inputs(lambda x, w: (x, plain_norm(x, w))), draw((5, 17, 24), (24,), device=device))


@each_backend
def test_updates_of_another_dtype(device, backend):
    """A float32 stream and a bfloat16 branch: the sum is float32, and each gradient has the dtype of its input."""
    x, y, gain = draw((40, 16), (40, 16), (16,), device=device)
    given = [x, y.bfloat16(), gain]
    with torch.autocast(device, torch.bfloat16), traced():
        actual = run(partial(at_eps(fused.add_rms_norm), backend=backend), given)
        assert fused.rms_norm(x, gain, EPS, backend=backend).dtype == torch.bfloat16
    assert [t.dtype for t in actual] == [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16, torch.float32]
    check(actual, run(plain_add_norm, double(given)), BFLOAT16)


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=pytest.mark.gpu)])
def test_swiglu_mlp_follows_autocast(device, backend):
    inputs = draw(*mlp_shapes((70,), 24, 48), device=device)
    with torch.autocast(device, torch.bfloat16):
        actual = run(lambda *a: fused.swiglu_mlp(*a, backend=backend), inputs)
    assert [t.dtype for t in actual] == [torch.bfloat16, *[torch.float32] * 3]
    check(actual, run(plain_mlp, double(inputs)), 2 * BFLOAT16)


# (groups of) rows, vocabulary, width. A tile of the backward is 64 rows by 64 tokens by 128 columns; with more than 256
# tokens PyTorch adds up the gradients.
TABLES = [((17,), 8, 96), ((2, 65), 100, 10), ((3,), 5, 200), ((2, 400), 300, 9)]


def rows_of(vocabulary, rows, device):
    return torch.randint(vocabulary, rows, generator=torch.Generator().manual_seed(1)).to(device)


@each_backend
@pytest.mark.parametrize("rows, vocabulary, width", TABLES, ids=str)
def test_embedding(device, rows, vocabulary, width, backend):
    inputs = [rows_of(vocabulary, rows, device), *draw((vocabulary, width), device=device)]
    check_close(partial(fused.embedding, backend=backend), plain_embedding, inputs)


# Triton's interpreter multiplies the bits of bfloat16 elements, not their values. 300 rows are not multiplied.
@pytest.mark.parametrize(
    "backend, vocabulary", [("reference", 3), pytest.param("triton", 3, marks=pytest.mark.gpu), ("triton", 300)]
)
def test_a_token_that_stands_almost_everywhere(device, backend, vocabulary):
    """Its gradient is a sum of thousands of equal terms, which bfloat16 could not add up."""
    tokens = torch.zeros(4096, dtype=torch.int64, device=device)
    table = torch.ones(vocabulary, 8, dtype=torch.bfloat16, device=device, requires_grad=True)
    x = fused.embedding(tokens, table, backend=backend)
    (grad,) = torch.autograd.grad(x, table, torch.full_like(x, 1.5))
    assert grad.dtype == torch.bfloat16 and torch.equal(grad[0], torch.full_like(grad[0], 1.5 * 4096))
    assert not grad[1:].any()


def test_programs_that_take_several_steps(device, monkeypatch):
    """As for many rows: two programs share 70 rows of the norm in tiles of 16, and 130 tokens in steps of 64."""
    for operator in (norm_operator, embedding_operator):
        monkeypatch.setattr(operator, "processors", lambda device: 1)
    monkeypatch.setattr(norm_operator, "BACKWARD", (4, 2, 3))
    monkeypatch.setattr(embedding_operator, "BACKWARD_PROGRAMS", 2)
    check_close(partial(at_eps(fused.rms_norm), backend="triton"), plain_norm, draw((70, 128), (128,), device=device))
    inputs = [rows_of(8, (130,), device), *draw((8, 16), device=device)]
    check_close(partial(fused.embedding, backend="triton"), plain_embedding, inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("rows, width", [((128, 128), 128), ((3, 700), 96), ((2, 2048), 1024)], ids=str)
def test_norm_and_swiglu_in_bfloat16(device, rows, width):
    x, y, up = draw((*rows, width), (*rows, width), (*rows, width), device=device, dtype=torch.bfloat16)
    (weight,) = draw((width,), device=device)
    same_bits(lambda *a: fused.rms_norm(*a, EPS), plain_norm, [x, weight])
    with torch.autocast("cuda", torch.bfloat16):
        same_bits(lambda *a: fused.add_rms_norm(*a, EPS), plain_add_norm, [x.float(), y, weight])
    same_bits(fused.swiglu, plain_swiglu, [x, up])
    same_bits(fused.swiglu_packed, plain_swiglu_packed, [torch.cat((x, up), dim=-1)])


@pytest.mark.gpu
@pytest.mark.parametrize("rows, vocabulary", [((128, 128), 16), ((64, 32), 8192), ((3, 700), 129)], ids=str)
def test_embedding_in_bfloat16(device, rows, vocabulary):
    tokens, (weight,) = rows_of(vocabulary, rows, device), draw((vocabulary, 128), device=device)
    same_bits(fused.embedding, plain_embedding, [tokens, weight.bfloat16()])
    same_bits(fused.embedding, plain_embedding, [tokens, weight], 2e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rows, width, inner, scale",
    [(16384, 128, 352, 1), (4096, 64, 176, 1), (1000, 32, 96, 1), (777, 72, 200, 1), (500, 128, 352, 1000)],
    ids=str,
)
def test_swiglu_mlp_in_bfloat16(device, rows, width, inner, scale):
    """As close to float64 as three operators one by one, for gates of any size."""
    x, gate_up, down = draw(*mlp_shapes((rows,), width, inner, (3,)), device=device, dtype=torch.bfloat16)
    inputs = [scale * x, gate_up / 8, down / 8]
    same_bits(torch.func.vmap(fused.swiglu_mlp), torch.func.vmap(plain_mlp), inputs, 2 * BFLOAT16)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [*CONVOLUTION, (3, 500, 256, 4)], ids=str)
def test_short_convolution_in_bfloat16(device, sizes):
    """Sums are float32: what remains is the rounding of the results to bf16, a relative 2^-8 at most."""
    x, *parameters = draw(*convolution_shapes(*sizes), device=device)
    kernel = partial(short_convolution, backend="triton")
    check_close(kernel, convolution, [x.bfloat16(), *parameters], 2**-8)
