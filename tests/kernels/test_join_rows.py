"""Weights one above the other: no copy if they are neighbours in memory, and the same result if they are not."""

import torch

from mixerlab.kernels.fused import join_rows


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
