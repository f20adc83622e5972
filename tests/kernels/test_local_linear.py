"""The solved probe against dense solves."""

import pytest
import torch
from recurrences import check, check_compiled_and_captured, check_replicas

from mixerlab.kernels.local_linear import operator, solved_probe

SCALE, RIDGE = 0.3, 0.5


def dense(q, k, relative=True):
    a, b = q.transpose(1, 2), k.transpose(1, 2)
    weights = (SCALE * a @ b.mT).exp().tril()
    total = weights.sum(-1, keepdim=True)
    p, ridge = weights / total, RIDGE / (torch.ones_like(total) if relative else total)
    mean = p @ b
    moment = torch.einsum("...ts,...sd,...se->...tde", p, b, b) - mean[..., :, None] * mean[..., None, :]
    moment = moment + ridge[..., None] * torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    return torch.linalg.solve(moment, mean - a).transpose(1, 2)


def kernel(q, k, relative=True, backend="triton"):
    options = {"scale": SCALE, "ridge": RIDGE, "relative": relative, "iterations": 16 if relative else 48}
    return solved_probe(q, k, **options, backend=backend)


def inputs_of(length, dim=16, device="cpu", dtype=torch.float32):
    rng = torch.Generator().manual_seed(length)
    return [torch.randn(1, length, 2, dim, generator=rng).to(device, dtype) for _ in range(2)]


@pytest.mark.parametrize(
    ("backend", "relative", "dtype", "tolerance"),
    [
        ("reference", True, torch.float64, 1e-9),
        ("reference", False, torch.float64, 1e-9),
        ("triton", True, torch.float32, 1e-5),
    ],
)
@pytest.mark.parametrize(("length", "dim"), [(1, 16), (40, 16), (40, 12)])
def test_equals_dense_solves(device, length, dim, backend, relative, dtype, tolerance, monkeypatch):
    """Over several chunks of queries; the gradients are implicit derivatives."""
    monkeypatch.setattr(operator, "CHUNK_SIZE", 36)
    given = {"relative": relative, "backend": backend}
    inputs = inputs_of(length, dim, device, dtype)
    check(lambda *x: kernel(*x, **given), lambda *x: dense(*x, relative), inputs, tolerance, names=("q", "k"))


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=pytest.mark.slow)])
def test_under_vmap(device, backend):
    check_replicas(lambda *x: kernel(*x, backend=backend), [inputs_of(length, device=device) for length in (20, 20)])


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [4, 12, 16, 32, 64])
@pytest.mark.parametrize("length", [1, 63, 128, 300])
def test_kernel_on_a_gpu(length, dim):
    check(kernel, dense, inputs_of(length, dim, "cuda"), 1e-3, names=("q", "k"))


@pytest.mark.gpu
def test_kernel_in_a_compiled_function_and_a_cuda_graph():
    check_compiled_and_captured(kernel, inputs_of(140, 64, "cuda", torch.bfloat16))
