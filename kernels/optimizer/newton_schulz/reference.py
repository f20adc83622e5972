"""Newton-Schulz iteration in PyTorch, batched over matrices of one shape."""

from itertools import groupby
from math import prod

import torch
from torch import Tensor

# The quintic a x + b x^3 + c x^5 of Jordan et al. 2024 (Muon), with the steepest slope at zero.
QUINTIC = (3.4445, -4.7750, 2.0315)
EPS = 1e-7  # smallest Frobenius norm that a matrix is divided by


def newton_schulz(matrices: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Approximate polar factors of `matrices` `[N, m, n]`, computed and given in `dtype`."""
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    # The Frobenius norm bounds the spectral norm, which the iteration needs to be at most 1.
    x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=EPS)).to(dtype)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def orthogonalise_reference(
    flat: Tensor, shapes: tuple[tuple[int, int], ...], steps: int, dtype: torch.dtype
) -> Tensor:
    """`orthogonalise`. Neighbours of the same shape, in all rows, are one batch."""
    polar = torch.empty_like(flat)
    start = 0
    for shape, run in groupby(shapes):
        stop = start + len(list(run)) * prod(shape)
        matrices, target = (x[:, start:stop].unflatten(1, (-1, *shape)) for x in (flat, polar))
        target[:] = newton_schulz(matrices.flatten(0, 1), steps, dtype).view(target.shape)
        start = stop
    return polar
