"""Rows that are looked up late: their norm, additions to them, and products of their table, against float64."""

import pytest
import torch
from formulas import EPS, plain_norm
from fused_cases import BACKENDS, BFLOAT16, check, check_close, check_replicas, double, draw, run, same_bits, traced

from mixerlab.kernels.fused import (
    Embedded,
    EmbeddedSum,
    add_rms_norm,
    embedded_add_rms_norm,
    embedding,
    embedding_rms_norm,
)
from mixerlab.kernels.fused.rms_norm import operator


def plain(tokens, table, y, z, gain, next_gain):
    """Addition and norm, twice, as in a model's first block: the second update depends on the first norm."""
    total = table[tokens] + y
    normed = plain_norm(total, gain)
    total = total + z + normed
    return normed, total, plain_norm(total, next_gain)


def twice(backend, sums=EmbeddedSum):
    def add_twice(tokens, table, y, z, gain, next_gain):
        total, normed = embedded_add_rms_norm(Embedded(tokens, table), y, gain, EPS, backend=backend)
        assert isinstance(total, sums)
        add_norm = add_rms_norm if isinstance(total, torch.Tensor) else embedded_add_rms_norm
        return normed, *add_norm(total, z + normed.to(z.dtype), next_gain, EPS, backend=backend)

    return add_twice


def inputs(vocabulary, width, rows, device):
    tokens = torch.randint(max(1, vocabulary - 1), rows, generator=torch.Generator().manual_seed(1)).to(device)
    tokens[..., ::3] = 0
    shapes = (vocabulary, width), (*rows, width), (*rows, width), (width,), (width,)
    return [tokens, *draw(*shapes, device=device)]


# Triton's interpreter multiplies the bits of bfloat16 elements, not their values. 300 rows are not multiplied.
@pytest.mark.parametrize(
    "backend, vocabulary", [("reference", 3), pytest.param("triton", 3, marks=pytest.mark.gpu), ("triton", 300)]
)
def test_a_token_that_stands_almost_everywhere(device, backend, vocabulary):
    """Its gradient is a sum of thousands of equal terms, which bfloat16 could not add up."""
    tokens = torch.zeros(4096, dtype=torch.int64, device=device)
    table = torch.ones(vocabulary, 8, dtype=torch.bfloat16, device=device, requires_grad=True)
    x = embedding(tokens, table, backend=backend)
    (grad,) = torch.autograd.grad(x, table, torch.full_like(x, 1.5))
    assert grad.dtype == torch.bfloat16 and torch.equal(grad[0], torch.full_like(grad[0], 1.5 * 4096))
    assert not grad[1:].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("vocabulary", [5, 129])  # the table is normed, or the looked-up rows are
def test_embedding_with_its_norm(device, vocabulary, backend):
    tokens = torch.tensor([[1, 0, 1, 1, 4], [2, 2, 1, 0, 1]], device=device)

    def function(tokens, table, gain):
        results = embedding_rms_norm(tokens, table, gain, EPS, backend=backend)
        assert all(isinstance(x, Embedded) == (vocabulary == 5) for x in results)
        return tuple(x.look_up(backend=backend) if isinstance(x, Embedded) else x for x in results)

    given = [tokens, *draw((vocabulary, 24), (24,), device=device)]
    check_close(function, lambda tokens, table, gain: (table[tokens], plain_norm(table[tokens], gain)), given)
    check_replicas(function, [tokens, *draw((2, vocabulary, 24), (2, 24), device=device)])


# The launch adds up gradients for up to 16 and 32 tokens; for more a second one does. Whole tiles and parts of one.
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "vocabulary, width, rows", [(16, 128, (2, 64)), (5, 24, (3, 9)), (30, 3, (37,)), (33, 128, (1, 40)), (1, 16, (2,))]
)
def test_added_to_what_is_looked_up(device, vocabulary, width, rows, backend):
    given = inputs(vocabulary, width, rows, device)
    function = twice(backend, torch.Tensor if backend == "reference" else EmbeddedSum)
    check_close(function, plain, given)


@pytest.mark.parametrize("vocabulary", [7, 40])
def test_replicas_with_tables_among_other_parameters(device, vocabulary):
    """At a place that no vector load can use."""
    tokens, _, y, z, *gains = inputs(vocabulary, 12, (3, 2, 9), device)
    (parameters,) = draw((3, 3 + vocabulary * 12), device=device, seed=2)
    gains = [gain.expand(3, 12).clone() for gain in gains]

    def function(tokens, parameters, *others):
        return twice("triton")(tokens, parameters[3:].unflatten(0, (vocabulary, 12)), *others)

    check_replicas(function, [tokens, parameters, y, z, *gains])


@pytest.mark.parametrize("vocabulary", [5, 20, 50])
def test_programs_that_take_several_steps(device, monkeypatch, vocabulary):
    monkeypatch.setattr(operator, "processors", lambda device: 1)
    given = inputs(vocabulary, 128, (331,), device)
    check_close(twice("triton"), plain, given)


# Without products Triton's interpreter computes bfloat16 correctly.
@pytest.mark.parametrize("y_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("z_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wanted", ["both", "sum"])
def test_added_to_a_sum(device, y_dtype, z_dtype, wanted):
    tokens, table, y, z, gain, _ = inputs(5, 24, (3, 9), device)
    y, z = y.to(y_dtype), z.to(z_dtype).requires_grad_()
    zero = torch.zeros((), device=device).expand(y.shape).requires_grad_()

    def results(function, total, z_dtype, gain_dtype):
        total, normed = function(total, z.to(z_dtype), gain.to(gain_dtype), EPS)
        grads = draw(total.shape, normed.shape, device=device, dtype=torch.bfloat16, seed=3)
        terms = [(total * grads[0]).sum(), (normed.float() * grads[1]).sum()]
        gradients = torch.autograd.grad(sum(terms if wanted == "both" else terms[:1]), [zero, z])
        return [total, normed, *gradients]

    def add_norm(total, *given):
        with torch.autocast(device, torch.bfloat16), traced():
            _, normed = embedded_add_rms_norm(total.rows, *given, backend="triton")
            assert normed.dtype == torch.bfloat16
            return embedded_add_rms_norm(total, *given, backend="triton")

    actual = results(add_norm, EmbeddedSum(Embedded(tokens, table), y, zero), z_dtype, torch.float32)
    assert [x.dtype for x in actual] == [torch.float32, torch.bfloat16, torch.float32, z_dtype]
    expected = results(add_rms_norm, (table[tokens] + y + zero).double(), torch.float64, torch.float64)
    check([actual[0].detach(), actual[2]], [expected[0].detach(), expected[2]])
    check([actual[1].detach(), actual[3]], [expected[1].detach(), expected[3]], BFLOAT16)


def test_elsewhere_it_is_looked_up_before(device):
    for vocabulary, width in ((129, 16), (5, 136)):
        given = inputs(vocabulary, width, (2, 7), device)
        check_close(twice("auto", torch.Tensor), plain, given)
        with pytest.raises(ValueError, match=f"at most 128 x 128, not torch.float32 of {vocabulary} x {width}"):
            embedded_add_rms_norm(Embedded(*given[:2]), given[2], given[4], EPS, backend="triton")
    given = double(inputs(5, 16, (2, 7), device))
    check(run(twice("auto", torch.Tensor), given), run(plain, given))


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary, rows", [(16, (128, 128)), (32, (3, 700)), (64, (9, 300)), (128, (16, 1024))])
def test_in_bfloat16(device, vocabulary, rows):
    tokens, table, y, z, *gains = inputs(vocabulary, 128, rows, device)
    given = [tokens, table, y.bfloat16(), z.bfloat16(), *gains]

    def function(*given):
        with torch.autocast("cuda", torch.bfloat16):
            return twice("auto")(*given)

    same_bits(function, plain, given, 2 * BFLOAT16)
