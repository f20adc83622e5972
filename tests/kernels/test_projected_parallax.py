"""Projection, rotation and Parallax attention as one operator, against the formulas in float64, and when it runs."""

from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from formulas import EPS, plain_norm, rotary
from fused_cases import FLOAT32, check, check_close, check_replicas, double, draw, run
from parallax_cases import operators_of

from mixerlab.kernels.fused import linear, rotary_heads
from mixerlab.kernels.parallax import parallax_attention, triton_rotation
from mixerlab.kernels.parallax.projected import projected_parallax, triton_projection
from mixerlab.kernels.parallax.reference import parallax_reference

kernel = partial(projected_parallax, backend="triton")
ONE, LOOKED_UP = "mixerlab::projected_parallax", "mixerlab::looked_up_parallax"


def frequency(head_dim, device="cpu"):
    return 100.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


def inputs(length, width, heads, head_dim, device, batch=2, normed=False):
    """In the dtype that the operator takes on this device, and with scores of about one; gains if they are normed."""
    x, weight, *gains = draw((batch, length, width), (4 * heads * head_dim, width), *[(head_dim,)] * 3, device=device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return [x.to(dtype), (weight * width**-0.5).to(dtype), *(gains if normed else ())]


def of(function, **given):
    return lambda x, weight, *gains: function(x, weight, gains=gains, eps=EPS, **given)


def tolerance(device):
    return 0.01 if device == "cuda" else FLOAT32


def exact(x, weight, heads, gains=(), eps=EPS, rotate_rho=False):
    """The formulas, one by one: pairs (i, i + D/2) as complex numbers, rotated by position times frequency."""
    q, k, v, rho = (x @ weight.T).unflatten(-1, (4, heads, -1)).unbind(2)
    if gains:
        q, k, rho = map(plain_norm, (q, k, rho), gains)
    head_dim = q.shape[-1]
    q, k = (rotary(y, frequency(head_dim, x.device)) for y in (q, k))
    rho = rotary(rho, frequency(head_dim, x.device)) if rotate_rho else rho
    return parallax_reference(q, rho, k, v, head_dim**-0.5, None)


# length, width, heads, head dim, rotate_rho, normed: whole tiles and parts of one, widths below a power of two.
CASES = [
    (141, 24, 1, 32, True, True),
    (192, 32, 2, 16, False, False),
    (130, 128, 2, 16, True, False),
    (130, 24, 2, 16, False, True),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("length, width, heads, head_dim, rotate_rho, normed", CASES)
def test_against_the_formulas(device, length, width, heads, head_dim, rotate_rho, normed):
    given = inputs(length, width, heads, head_dim, device, normed=normed)
    function = of(kernel, inverse_frequency=frequency(head_dim, device), heads=heads, rotate_rho=rotate_rho)
    assert ONE in operators_of(lambda: function(*given))
    expected = run(of(exact, heads=heads, rotate_rho=rotate_rho), double(given))
    actual = run(function, given)
    check(actual[:3], expected[:3], tolerance(device))
    # Of gains: sums over positions and heads of which most cancels; three operators, one by one, are as far off.
    check(actual[3:], expected[3:], 2 * tolerance(device))


def of_table(function):
    tokens = torch.randint(9, (2, 199), generator=torch.Generator().manual_seed(1))

    def looked_up(table, weight, *gains, length=199):
        return function(table, weight, gains=gains, eps=EPS, rows=tokens[:, :length].to(table.device))

    return looked_up


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "width, heads, head_dim, rotate_rho, normed",
    # Heads and widths that the projection's kernel does not take as well.
    [(18, 1, 32, True, True), (32, 2, 16, False, False), (136, 3, 16, True, False), (18, 2, 16, False, True)],
)
def test_a_table_is_multiplied_and_looked_up(device, width, heads, head_dim, rotate_rho, normed):
    x, *rest = inputs(9, width, heads, head_dim, device, batch=1, normed=normed)
    given = [x[0], *rest]
    options = {"inverse_frequency": frequency(head_dim, device), "heads": heads, "rotate_rho": rotate_rho}
    function = of_table(partial(kernel, **options))
    assert LOOKED_UP in operators_of(lambda: function(*given))
    formula = of_table(lambda x, weight, rows, **norm: exact(x[rows], weight, heads, rotate_rho=rotate_rho, **norm))
    check_close(function, formula, given, 2 * tolerance(device))
    assert LOOKED_UP not in operators_of(lambda: function(*given, length=128))
    check([function(*given, length=128)], [formula(*double(given), length=128)], 2 * tolerance(device))


@pytest.mark.slow
def test_programs_that_walk_several_tiles(device, monkeypatch):
    monkeypatch.setattr(triton_projection, "processors", lambda device: 2)
    function = partial(kernel, inverse_frequency=frequency(16, device), heads=1)
    check_close(function, partial(exact, heads=1), inputs(130, 16, 1, 16, device, batch=4), tolerance(device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="compares float32, which runs only in the interpreter")
@pytest.mark.slow
def test_replicas_under_vmap(device):
    """Weights are rows of one tensor of all parameters, at a place that the copy engine cannot address."""
    tensors = draw((3, 2, 130, 16), (3, 5 + 67 * 16), device=device)

    def of_parameters(x, parameters):
        weight, gains = parameters[5:].unflatten(0, (67, 16)).split((64, 3))
        return kernel(x, weight / 4, frequency(16, device), 1, gains=gains.unbind(), eps=EPS)

    check_replicas(of_parameters, tensors)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "length, width, heads, head_dim",
    [(128, 16, 1, 16), (130, 136, 1, 16), (130, 16, 3, 16), (130, 18, 1, 16)],
)
def test_elsewhere_three_operators(device, length, width, heads, head_dim):
    """A short sequence; a wide x; three heads; rows that the copy engine cannot address."""
    given = inputs(length, width, heads, head_dim, device, batch=1, normed=True)
    function = of(kernel, inverse_frequency=frequency(head_dim, device), heads=heads)
    assert ONE not in operators_of(lambda: function(*given))
    actual, expected = run(function, given), run(of(exact, heads=heads), double(given))
    check(actual[:-3], expected[:-3], tolerance(device))
    # The gradient of a gain is a sum of terms of both signs, each rounded to bfloat16.
    check(actual[-3:], expected[-3:], 2 * tolerance(device))


@triton.jit
def rotation_kernel(frequency, cos_ptr, sin_ptr, start, EXACT: tl.constexpr):
    cos, sin = triton_rotation.rotation(frequency, 1, start + tl.arange(0, 64), 32, EXACT)
    at = tl.arange(0, 64)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(cos_ptr + at, cos)
    tl.store(sin_ptr + at, sin)


@pytest.mark.gpu  # the interpreter has another sine, and rounds an fma twice
@pytest.mark.parametrize("start", [0, 2000, 99_936])
def test_whole_revolutions_are_dropped_exactly(device, start):
    """At positions where float32 `position * frequency` is off by up to 4e-3."""
    frequencies = torch.stack([torch.zeros(16), frequency(32)]).to(device)
    cos, sin = torch.empty(2, 64, 16, device=device)
    rotation_kernel[(1,)](frequencies, cos, sin, start, EXACT=False)
    angles = torch.arange(start, start + 64, device=device)[:, None].double() * frequencies[1].double()
    for actual, expected in ((cos, angles.cos()), (sin, angles.sin())):
        assert (actual - expected).abs().max() < 2e-6


@pytest.mark.gpu
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("length, heads, head_dim", [(256, 2, 64), (1000, 8, 16), (300, 1, 128), (2048, 4, 32)])
def test_as_close_as_three_operators(device, length, heads, head_dim, normed):
    """Two runs agree bit for bit, and are as close to float64 as three operators, which round in between."""
    given = inputs(length, 128, heads, head_dim, device, batch=12, normed=normed)  # several tiles for each program
    function = of(projected_parallax, inverse_frequency=frequency(head_dim, device), heads=heads)

    def by_three(x, weight, *gains):
        of_parts = (*gains[:2], None, gains[2]) if normed else None
        rotated = True, True, False, False
        packed = linear(x, weight)
        q, k, v, rho = rotary_heads(packed, heads, frequency(head_dim, device), rotated, of_parts, EPS)
        return parallax_attention(q, rho, k, v)

    expected = run(of(exact, heads=heads), double(given))
    one, again, three = (run(f, given) for f in (function, function, by_three))
    for i, (a, b, c, e) in enumerate(zip(one, again, three, expected, strict=True)):
        assert torch.equal(a, b)
        largest = 0.01 if i < 3 else 0.02  # gains: sums over all positions and heads, of which most cancels
        assert (a - e).norm() <= 1.05 * (c - e).norm() <= largest * e.norm()
