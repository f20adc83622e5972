"""What the tests of the fused operators share: random inputs, values with gradients, and the comparison."""

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


def run(function, inputs, grads=None) -> list[Tensor]:
    """All results, then the gradients of all floating-point inputs, for `grads` or random ones of the results."""
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
    results = function(*leaves)
    results = [results] if isinstance(results, Tensor) else list(results)
    if grads is None:
        # In bfloat16, so that any dtype of the results holds them exactly.
        grads = draw(*(r.shape for r in results), device=results[0].device, dtype=torch.bfloat16, seed=99)
    wanted = [t for t in leaves if t.requires_grad]
    gradients = torch.autograd.grad(results, wanted, [g.to(r.dtype) for g, r in zip(grads, results, strict=True)])
    return [r.detach() for r in results] + list(gradients)


def double(inputs: list[Tensor]) -> list[Tensor]:
    return [t.double() if t.is_floating_point() else t for t in inputs]


def check(actual: list[Tensor], expected: list[Tensor], tolerance: float = FLOAT32) -> None:
    """The relative error ||actual - expected|| / ||expected|| of each tensor."""
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert a.shape == e.shape
        error, size = (a.double() - e.double()).norm(), e.double().norm()
        assert error <= tolerance * size, f"tensor {i}: error {error:.2e} of {size:.2e}, above {tolerance:.0e}"


def check_close(function, plain, inputs, tolerance: float = FLOAT32) -> None:
    """Results and gradients of `function` are those of `plain` in float64."""
    check(run(function, inputs), run(plain, double(inputs)), tolerance)


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


def check_replicas(function, stacked: list[Tensor], tolerance: float = FLOAT32) -> None:
    """Under vmap each replica gets the same as by itself, and operators are traced as they run."""
    with traced():
        together = run(torch.func.vmap(function), stacked)
    results = together[: len(together) - sum(t.is_floating_point() for t in stacked)]
    grads = draw(*(t.shape for t in results), dtype=torch.bfloat16, seed=99)
    for r in range(len(stacked[0])):
        single = run(function, [t[r] for t in stacked], [g[r].to(stacked[0].device) for g in grads])
        check([t[r] for t in together], single, tolerance)


def same_bits(function, plain, inputs, tolerance: float = BFLOAT16) -> None:
    """Two runs agree bit for bit, and with float64 within the rounding of bfloat16."""
    first, second = run(function, inputs), run(function, inputs)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    check(first, run(plain, double(inputs)), tolerance)


def scored_logits(rows, vocabulary, device) -> tuple[Tensor, Tensor]:
    """Logits with a wide range; a third of the positions have no target."""
    (logits,) = draw((*rows, vocabulary), device=device)
    targets = torch.randint(vocabulary, rows, generator=torch.Generator().manual_seed(1))
    targets.flatten()[::3] = -100
    return 5 * logits, targets.to(device)
