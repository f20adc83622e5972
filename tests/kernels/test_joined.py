"""What lies in memory side by side: rows of many tensors as one, and weights one above the other without a copy."""

import pytest
import torch

from mixerlab.kernels.fused import join_rows
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


def test_columns_may_have_any_dtype():
    parts = [torch.randn(3, 4).double(), torch.randn(3, 2)]
    joined = join_columns(parts, torch.float64)
    assert joined.dtype == torch.float64 and torch.equal(joined[:, :4], parts[0])


def test_neighbours_are_joined_without_a_copy():
    parameters = torch.randn(3, 100)
    a, b = parameters[:, 4:24].unflatten(1, (5, 4)), parameters[:, 24:36].unflatten(1, (3, 4))
    joined = torch.func.vmap(join_rows)(a, b)
    assert torch.equal(joined, torch.cat([a, b], dim=1))
    assert joined.data_ptr() == a.data_ptr() and joined.stride(0) == 100
    for others in ([b, a], [a, a], [a, b.clone()]):  # the wrong way round, a gap, another tensor
        joined = torch.func.vmap(join_rows)(*others)
        assert torch.equal(joined, torch.cat(others, dim=1)) and joined.stride(0) != 100


def test_single_rows_of_a_wider_tensor_are_no_neighbours():
    """The stride of an axis of one says nothing about where the next row is."""
    base = torch.arange(64.0).view(8, 8)
    halves = base[0:1, :4], base[0:1, 4:]
    assert torch.equal(join_rows(*halves), torch.cat(halves))
    rows = base[2:3], base[3:5]
    joined = join_rows(*rows)
    assert torch.equal(joined, torch.cat(rows)) and joined.data_ptr() == rows[0].data_ptr()
