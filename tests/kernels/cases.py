"""What the tests of operators share: random inputs, values with gradients, and the comparison."""

import secrets
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

BACKENDS = ["reference", "triton"]
# Relative errors: sums of at most a few hundred terms; rounding to bfloat16 changes an element by up to 2^-8 = 3.9e-3.
FLOAT32, BFLOAT16 = 2e-6, 4e-3


def draw(*shapes, device="cpu", dtype=torch.float32, seed=0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def draw_attention(length, head_dim, *, heads=2, kv_heads=2, batch=2, dtype=torch.float32, device="cpu"):
    """Fresh q, rho, k, v and an output gradient, standard normal."""
    seed = secrets.randbits(31)
    print(f"seed {seed}")  # pytest shows it beside a failure
    shapes = [(batch, length, h, head_dim) for h in (heads, heads, kv_heads, kv_heads, heads)]
    return draw(*shapes, device=device, dtype=dtype, seed=seed)


def weights_of(results) -> list[Tensor]:
    """Random gradients of results, in bfloat16, so that any dtype of the results holds them exactly."""
    return draw(*(r.shape for r in results), device=results[0].device, dtype=torch.bfloat16, seed=99)


def run(function, inputs, grads=None) -> list[Tensor]:
    """All results, then the gradients of all floating-point inputs, for `grads` or `weights_of` the results."""
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
    results = function(*leaves)
    results = [results] if isinstance(results, Tensor) else list(results)
    grads = weights_of(results) if grads is None else grads
    wanted = [t for t in leaves if t.requires_grad]
    gradients = torch.autograd.grad(results, wanted, [g.to(r.dtype) for g, r in zip(grads, results, strict=True)])
    return [r.detach() for r in results] + list(gradients)


def double(inputs: list[Tensor]) -> list[Tensor]:
    return [t.double() if t.is_floating_point() else t for t in inputs]


def check(actual, expected, tolerance=FLOAT32, *, least=0.0, entries=None) -> None:
    """The relative error ||actual - expected|| / ||expected|| of each tensor.

    With `entries`, also the error of each entry, relative to the largest one, may be that many times the tolerance.
    Norms and entries below `least` count as that: some gradients are zero, but for rounding.
    """
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.shape == e.shape
        difference, e = a.double() - e.double(), e.double()
        error, size = difference.norm(), e.norm().clamp_min(least)
        assert error <= tolerance * size, f"tensor {i}: error {error:.2e} of {size:.2e}, above {tolerance:.0e}"
        if entries:
            error, size = difference.abs().max(), e.abs().max().clamp_min(least)
            assert error <= entries * tolerance * size, f"tensor {i}: an entry is {error:.2e} off, of {size:.2e}"


def check_close(function, plain, inputs, tolerance=FLOAT32, **options) -> None:
    """Results and gradients of `function` are those of `plain` in float64."""
    check(run(function, inputs), run(plain, double(inputs)), tolerance, **options)


@contextmanager
def traced():
    """Our operators in this block are what `torch.compile` takes them for.

    Their results have the shapes, dtypes and strides that are known without running them, and no input changes.
    """
    with Recorded() as recorded:
        yield
    for operator, arguments in recorded.calls:
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


class Recorded(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        if operator.namespace == "mixerlab":
            self.calls.append((operator, arguments))
        return operator(*arguments, **(options or {}))


def turned(x: Tensor) -> Tensor:
    return x.mT.contiguous() if x.ndim > 1 else x


def check_replicas(function, inputs: list[Tensor], dims: list[int | None], tolerance: float) -> None:
    """Under vmap over `dims` each replica gets the same as by itself, and operators are traced as they run.

    By itself it gets contiguous inputs and gradients, together gradients that are transposed. A gradient of an input
    that replicas share is the sum of theirs.
    """

    def transposed(*inputs):
        results = function(*inputs)
        return [turned(r) for r in ([results] if isinstance(results, Tensor) else results)]

    with traced():
        together = run(torch.func.vmap(transposed, tuple(dims)), inputs)
    of_inputs = [dim for dim, t in zip(dims, inputs, strict=True) if t.is_floating_point()]
    grads = weights_of(together[: -len(of_inputs)])
    alone = []
    for r in range(len(grads[0])):
        own = [(x if dim is None else x.select(dim, r)).contiguous() for x, dim in zip(inputs, dims, strict=True)]
        found = run(function, own, [turned(g[r]) for g in grads])
        alone.append([*map(turned, found[: len(grads)]), *found[len(grads) :]])
    for actual, dim, each in zip(together, [0] * len(grads) + of_inputs, zip(*alone, strict=True), strict=True):
        check([actual], [sum(each) if dim is None else torch.stack(each, dim)], tolerance)


def replayed(function, inputs: list[Tensor], fresh: list[Tensor]):
    """Results of a CUDA graph that is captured with some inputs, which become others before it is replayed."""
    warm_up = torch.cuda.Stream()
    with torch.cuda.stream(warm_up):
        function(*inputs)
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = function(*inputs)
    for x, new in zip(inputs, fresh, strict=True):
        x.copy_(new)
    graph.replay()
    return captured


def same_bits(function, plain, inputs, tolerance: float = BFLOAT16) -> None:
    """Two runs agree bit for bit, and with float64 within the rounding of bfloat16."""
    first, second = run(function, inputs), run(function, inputs)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    check(first, run(plain, double(inputs)), tolerance)
