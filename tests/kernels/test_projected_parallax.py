"""Projection, rotation and Parallax attention as one operator, against the formulas in float64, and where it runs."""

from functools import partial

import pytest
import torch
from fused_cases import check, check_replicas, double, draw, run
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.fused import Form, Part, linear, split_heads
from kernels.parallax import parallax_attention
from kernels.parallax.projected import projected_parallax
from kernels.parallax.reference import parallax_reference

kernel = partial(projected_parallax, backend="triton")


def frequency(head_dim, device="cpu"):
    return 100.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


def exact(x, weight, heads, turn_rho):
    """The formulas, one by one: pairs (i, i + D/2) as complex numbers, turned by position times frequency."""
    q, k, v, rho = (x @ weight.T).unflatten(-1, (4, heads, -1)).unbind(2)
    head_dim = q.shape[-1]
    positions = torch.arange(x.shape[1], dtype=torch.float64, device=x.device)
    turn = torch.polar(
        torch.ones(()).double().to(x.device), positions[:, None] * frequency(head_dim, x.device).double()
    )

    def turned(y):
        z = torch.complex(*y.chunk(2, dim=-1)) * turn[:, None]
        return torch.cat((z.real, z.imag), dim=-1)

    q, k = turned(q), turned(k)
    rho = turned(rho) if turn_rho else rho
    return parallax_reference(q, rho, k, v, head_dim**-0.5, True, None)


def operators_of(function):
    names = set()

    class Recorded(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, arguments=(), options=None):
            names.add(operator.overloadpacket._qualified_op_name)
            return operator(*arguments, **(options or {}))

    with Recorded():
        function()
    return names


# length, width, heads, head dim: whole tiles and parts of one, widths below a power of two.
SHAPES = [(192, 32, 2, 16), (141, 20, 1, 32), (130, 128, 2, 16)]


@pytest.mark.parametrize("turn_rho", [False, True])
@pytest.mark.parametrize("length, width, heads, head_dim", SHAPES)
def test_against_the_formulas(device, length, width, heads, head_dim, turn_rho):
    given = draw((2, length, width), (4 * heads * head_dim, width), device=device)
    given[1] *= width**-0.5
    function = partial(kernel, inverse_frequency=frequency(head_dim, device), heads=heads, turn_rho=turn_rho)
    actual = run(function, given)
    assert "mixerlab::projected_parallax" in operators_of(lambda: function(*given))
    check(actual, run(partial(exact, heads=heads, turn_rho=turn_rho), double(given)))


def test_replicas_under_vmap(device):
    """Weights are rows of one tensor of all parameters, at a place that the copy engine cannot address."""
    tensors = draw((3, 2, 130, 16), (3, 5 + 64 * 16), device=device)

    def of_parameters(x, parameters):
        return kernel(x, parameters[5:].unflatten(0, (64, 16)) / 4, frequency(16, device), 1)

    check_replicas(of_parameters, tensors)


def test_replicas_with_their_own_frequencies(device):
    x, weight = draw((2, 1, 130, 16), (64, 16), device=device)
    frequencies = torch.stack([frequency(16, device), frequency(16, device) / 2])
    together = torch.func.vmap(lambda x, f: kernel(x, weight, f, 1))(x, frequencies)
    for i in range(2):
        torch.testing.assert_close(together[i], kernel(x[i], weight, frequencies[i], 1))


@pytest.mark.parametrize(
    "length, width, head_dim", [(128, 16, 16), (130, 1024, 16), (130, 16, 8), (130, 18, 16)], ids=str
)
def test_elsewhere_three_operators(device, length, width, head_dim):
    """A short sequence, a large weight, heads that no tile fits, rows that the copy engine cannot address."""
    given = draw((1, length, width), (4 * head_dim, width), device=device)
    given[1] *= width**-0.5
    function = partial(kernel, inverse_frequency=frequency(head_dim, device), heads=1)
    assert "mixerlab::projected_parallax" not in operators_of(lambda: function(*given))
    check(run(function, given), run(partial(exact, heads=1, turn_rho=False), double(given)))


def test_second_derivative_is_refused(device):
    x, weight = (y.requires_grad_() for y in draw((1, 130, 16), (64, 16), device=device))
    (d_x,) = torch.autograd.grad(kernel(x, weight, frequency(16, device), 1).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        d_x.sum().backward()


def test_wrong_shapes(device):
    x, weight = torch.zeros(1, 130, 16, device=device), torch.zeros(64, 16, device=device)
    with pytest.raises(ValueError, match=r"weight has shape \(64, 16\): pass rows for q, k, v and rho of heads=3"):
        projected_parallax(x, weight, frequency(16, device), 3)
    for backend in ("reference", "triton"):
        with pytest.raises(ValueError, match=r"inverse_frequency has shape \(4,\): heads of 16 need \(8,?\)"):
            projected_parallax(x, weight, frequency(8, device), 1, backend=backend)


@pytest.mark.gpu
@pytest.mark.parametrize("length, heads, head_dim", [(256, 2, 64), (1000, 8, 16), (300, 1, 128), (2048, 4, 32)])
def test_bfloat16(device, length, heads, head_dim):
    """The same bits twice, and as close to float64 as three operators, which round in between."""
    x, weight = draw((3, length, 128), (512, 128), device=device)
    given = [x.bfloat16(), (weight / 128**0.5).bfloat16()]
    function = partial(projected_parallax, inverse_frequency=frequency(head_dim, device), heads=heads)

    def by_three(x, weight):
        parts = [Part(heads, head_dim, form) for form in (Form.ROTARY, Form.ROTARY, Form.VIEW, Form.VIEW)]
        q, k, v, rho = split_heads(linear(x, weight), parts, frequency(head_dim, device))
        return parallax_attention(q, rho, k, v)

    expected = run(partial(exact, heads=heads, turn_rho=False), double(given))
    one, again, three = (run(f, given) for f in (function, function, by_three))
    for a, b, c, e in zip(one, again, three, expected, strict=True):
        assert torch.equal(a, b)
        assert (a - e).norm() <= 1.05 * (c - e).norm() <= 0.01 * e.norm()
