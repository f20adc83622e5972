"""What the Parallax tests share: fresh inputs, and the errors of a backend against float64."""

import secrets
from functools import partial

import fused_cases
import torch
from torch import Tensor

from mixerlab.kernels.parallax import parallax_attention
from mixerlab.kernels.parallax.reference import parallax_reference

NAMES = ("o", "dq", "drho", "dk", "dv")


def draw(length, head_dim, *, heads=2, kv_heads=2, batch=2, dtype=torch.float32, device="cpu"):
    """Fresh q, rho, k, v and an output gradient, standard normal."""
    seed = secrets.randbits(31)
    print(f"seed {seed}")  # pytest shows it beside a failure
    rng = torch.Generator().manual_seed(seed)
    shapes = [(batch, length, h, head_dim) for h in (heads, heads, kv_heads, kv_heads, heads)]
    return [torch.randn(s, generator=rng, dtype=torch.float64).to(device, dtype) for s in shapes]


def run(function, tensors, **options) -> list[Tensor]:
    return fused_cases.run(partial(function, **options), tensors[:-1], tensors[-1:])


def exact(tensors, *, scale=None, window=None) -> list[Tensor]:
    scale = tensors[0].shape[-1] ** -0.5 if scale is None else scale
    return run(parallax_reference, [x.double() for x in tensors], scale=scale, window=window)


def relative_errors(got, expected) -> dict[str, tuple[float, float]]:
    """Of each result: the error's Frobenius norm, and its largest entry, over those of the exact result."""
    errors = {}
    for name, x, y in zip(NAMES, got, expected, strict=True):
        difference = x.double() - y
        errors[name] = ((difference.norm() / y.norm()).item(), (difference.abs().max() / y.abs().max()).item())
    return errors


def assert_close(tensors, tolerance, backend="triton", **options) -> None:
    """The kernels within `tolerance` of float64, by both measures, in the output and every gradient."""
    got = run(parallax_attention, tensors, backend=backend, **options)
    for x, given in zip(got, (tensors[0], *tensors[:4]), strict=True):
        assert x.dtype == given.dtype and x.shape == given.shape
    errors = relative_errors(got, exact(tensors, **options))
    assert all(e <= tolerance for pair in errors.values() for e in pair), errors  # a NaN fails too
