"""Newton-Schulz of many matrices: the kernel and the reference against the definition."""

from math import prod

import pytest
import torch
from cases import check, replayed
from torch.optim import _muon

from mixerlab.kernels.optimizer.newton_schulz import orthogonalise
from mixerlab.kernels.optimizer.newton_schulz.reference import QUINTIC

# Square, wide and tall, over one and several blocks of 128 columns, with sides far from powers of two.
RAGGED = ((48, 64), (2, 128), (40, 24), (24, 40), (1, 7), (20, 140), (260, 8), (16, 16))
EXACT = torch.bfloat16 if torch.cuda.is_available() else torch.float32  # what the kernel takes here
SMALL = ((5, 9), (9, 5), (4, 4))


def draw(shapes, replicas=2, seed=0, device="cpu"):
    """Rows of matrices of `shapes`, of very different sizes, as a view into wider rows."""
    generator = torch.Generator().manual_seed(seed)
    matrices = [torch.randn(replicas, *shape, generator=generator) * 10.0 ** (i - 2) for i, shape in enumerate(shapes)]
    flat = torch.cat([m.flatten(1) for m in matrices], dim=1)
    return torch.nn.functional.pad(flat, (0, 3)).to(device)[:, :-3]


def split(flat, shapes):
    parts = flat.split([prod(shape) for shape in shapes], dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


def iterated(matrix, steps):
    """The quintic applied to the singular values, in float64: what the iteration computes."""
    a, b, c = QUINTIC
    u, s, vh = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / s.norm()
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u @ s.diag() @ vh


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize(
    ("shapes", "steps"),
    [
        *((SMALL, steps) for steps in (1, 3, 5)),
        *((((30, 50),), 5), (((20, 140),), 5), pytest.param(RAGGED, 5, marks=pytest.mark.slow)),
    ],
)
def test_is_the_quintic_of_the_singular_values(device, backend, shapes, steps):
    flat = draw(shapes, device=device)
    ours = split(orthogonalise(flat, shapes, steps, dtype=EXACT, backend=backend).cpu(), shapes)
    for matrices, polar in zip(split(flat.cpu(), shapes), ours, strict=True):
        expected = torch.stack([iterated(matrix, steps) for matrix in matrices])
        check([polar], [expected], 1e-5 if torch.float32 == EXACT else 3e-2 if steps == 5 else 2e-2)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_a_bad_matrix_spoils_no_other(device, backend):
    flat = draw(SMALL, device=device)
    first, second = prod(SMALL[0]), prod(SMALL[1])
    flat[:, first : first + second] = 0
    clean = orthogonalise(flat, SMALL, dtype=EXACT, backend=backend)
    flat[1, 3] = float("nan")
    spoilt = orthogonalise(flat, SMALL, dtype=EXACT, backend=backend)
    assert spoilt[1, :first].isnan().all()
    spoilt[1, :first] = clean[1, :first]
    assert torch.equal(spoilt, clean)
    assert (clean[:, first : first + second] == 0).all()


@pytest.mark.gpu
def test_is_torchs_muon_in_bfloat16():
    """Both round to bfloat16 at every product: ours is as near to float32 as torch's, and as near to torch's."""
    shapes = ((128, 128), (128, 352), (512, 128), (256, 8), (40, 256))
    flat = draw(shapes, replicas=8, device="cuda")
    ours = split(orthogonalise(flat, shapes, backend="triton"), shapes)
    exact = split(orthogonalise(flat, shapes, dtype=torch.float32), shapes)
    for shape, matrices, polar, truth in zip(shapes, split(flat, shapes), ours, exact, strict=True):
        theirs = torch.stack([_muon._zeropower_via_newtonschulz(m, QUINTIC, 5, 1e-7).float() for m in matrices])
        rounding = (theirs - truth).norm()
        assert (polar - truth).norm() <= 1.2 * rounding, shape
        assert (polar - theirs).norm() <= 1.5 * rounding, shape


@pytest.mark.gpu
def test_runs_in_a_cuda_graph():
    shapes = ((128, 352), (24, 40))
    flat, fresh = (draw(shapes, seed=seed, device="cuda") for seed in range(2))
    captured = replayed(lambda x: orthogonalise(x, shapes), [flat], [fresh])
    assert torch.equal(captured, orthogonalise(fresh, shapes))
