"""An operator's output and every gradient, and how far both are from what is expected."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor


def output_and_gradients(function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    return [y.detach(), *torch.autograd.grad(y, inputs, grad.to(y.dtype))]


def assert_close(
    actual: list[Tensor],
    expected: list[Tensor],
    tolerance: float,
    names: Sequence[str],
    summed: Mapping[str, str] | None = None,
) -> None:
    """Root-mean-square error of the output and of the gradient of each input, relative to its own size.

    `summed` names gradients that are sums of another one's numbers. The error of such a sum grows with its summands,
    which a random draw may let cancel, so it is taken relative to their root of squares where that is larger: about
    what the sum is when they do not cancel.
    """
    of = dict(zip(("y", *names), expected, strict=True))
    for (name, e), a in zip(of.items(), actual, strict=True):
        error, size = (a.double() - e.double()).norm(), e.double().norm()
        if name in (summed or {}):
            size = max(size, of[summed[name]].double().norm())
        assert error <= tolerance * size, f"{name}: error {error:.2e} of {size:.2e}, above {tolerance:.0e}"
