"""Rows of many tensors side by side: the kernel and PyTorch against a plain loop."""

import pytest
import torch

from mixerlab.kernels.optimizer.join_columns import join_columns


def draw(device):
    """Parts of two rows: several blocks, a scalar, a slice of a wider tensor, a transposed one, one row for both."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((40, 70), (), (9, 31), (8, 6), (5,), (3, 2, 2))
    a, b, wide, tall, row, c = (torch.randn((2, *shape), generator=generator).to(device) for shape in shapes)
    return [a.bfloat16(), b, wide[:, 3:7], tall.mT.bfloat16(), row[:1].expand(2, 5), c]


@pytest.mark.parametrize("backend, most", [("reference", 64), ("triton", 64), ("triton", 4)])
def test_joins_and_casts(device, backend, most, monkeypatch):
    monkeypatch.setattr("mixerlab.kernels.optimizer.join_columns.triton_kernels.MOST_PARTS", most)
    parts = draw(device)
    expected = [torch.cat([part[row].float().reshape(-1) for part in parts]) for row in range(2)]
    joined = join_columns(parts, backend=backend)
    assert joined.dtype == torch.float32 and torch.equal(joined, torch.stack(expected))
