"""The kernel of the solved probe against dense solves."""

import pytest
import torch
from recurrences import check, check_compiled_and_captured, check_replicas

from mixerlab.kernels.local_linear import operator, solved_probe

SCALE, RIDGE = 0.3, 0.5


def dense(q, k):
    a, b = q.transpose(1, 2), k.transpose(1, 2)
    p = (SCALE * a @ b.mT).masked_fill(torch.ones(q.shape[1], q.shape[1], device=q.device).triu(1) > 0, -torch.inf)
    p = p.softmax(-1)
    mean = p @ b
    moment = torch.einsum("...ts,...sd,...se->...tde", p, b, b) - mean[..., :, None] * mean[..., None, :]
    moment = moment + RIDGE * torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    return torch.linalg.solve(moment, mean - a).transpose(1, 2)


def kernel(q, k):
    return solved_probe(q, k, scale=SCALE, ridge=RIDGE, relative=True, iterations=16, backend="triton")


def inputs_of(length, dim=16, device="cpu", dtype=torch.float32):
    rng = torch.Generator().manual_seed(length)
    return [torch.randn(1, length, 2, dim, generator=rng).to(device, dtype) for _ in range(2)]


@pytest.mark.parametrize("length", [1, 40])
def test_kernel_equals_dense_solves(device, length, monkeypatch):
    monkeypatch.setattr(operator, "CHUNK_SIZE", 36)
    check(kernel, dense, inputs_of(length, device=device), 1e-5, names=("q", "k"))


@pytest.mark.slow
def test_kernel_under_vmap(device):
    check_replicas(kernel, [inputs_of(length, device=device) for length in (20, 20)])


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [16, 32, 64])
@pytest.mark.parametrize("length", [1, 63, 128, 300])
def test_kernel_on_a_gpu(length, dim):
    check(kernel, dense, inputs_of(length, dim, "cuda"), 1e-3, names=("q", "k"))


@pytest.mark.gpu
def test_kernel_in_a_compiled_function_and_a_cuda_graph():
    check_compiled_and_captured(kernel, inputs_of(140, 64, "cuda", torch.bfloat16))
