"""Tensors that 32-bit offsets cannot address are copied or refused. Meta tensors have such sizes without memory."""

import pytest
import torch

from mixerlab.kernels.common.addressing import addressable, packed_heads, unit_stride
from mixerlab.kernels.parallax.triton_tiles import for_copy_engine

LENGTH, WIDTH = 2**12, 2**10  # of one sequence: 2^22 elements


def meta(*shape):
    return torch.empty(shape, device="meta")


@pytest.mark.parametrize(
    ("x", "is_reached"),
    [
        (meta(1024, LENGTH, WIDTH), True),  # sequences may lie anywhere
        (meta(8, LENGTH, 2 * WIDTH)[..., WIDTH:], True),
        (meta(LENGTH, 511, WIDTH).transpose(0, 1), True),
        (meta(1, 1, 1).expand(4, LENGTH, 1), True),
        (meta(1, 2**31 // WIDTH, WIDTH), True),  # the last offset is 2^31 - 1
        (meta(0, LENGTH, WIDTH), True),
        (meta(LENGTH, 513, WIDTH).transpose(0, 1), False),  # time first
        (meta(LENGTH, 513, 8, WIDTH // 8).transpose(0, 1), False),
        (meta(2, 16, 2**25, 8)[:, :, ::2, :].movedim(1, 2)[..., :4], False),  # heads far apart
        (meta(2, WIDTH, LENGTH).mT, False),
    ],
)
def test_what_32_bits_reach_stays_as_it_lies_and_others_are_copied(x, is_reached):
    found = addressable(x)
    assert (found is x) == is_reached and (is_reached or found.is_contiguous()) and found.shape == x.shape


@pytest.mark.parametrize("x", [meta(3, 2**21 + 1, WIDTH), meta(1, WIDTH).expand(2**21 + 1, WIDTH)[None]])
def test_a_sequence_that_no_copy_helps_is_refused(x):
    with pytest.raises(ValueError, match=r"shape \(\d, 2097153, 1024\): the kernel takes at most 2147483648 elements"):
        addressable(x)


def test_unit_stride_allows_any_step_between_rows():
    rows = meta(1, 2**25, 4 * WIDTH)[..., :WIDTH]
    assert unit_stride(rows) is rows
    assert unit_stride(rows.mT).is_contiguous()


def test_a_single_position_whose_heads_lie_in_front_is_packed():
    x = torch.randn(2, 3, 1, 8).transpose(1, 2)
    packed = packed_heads(x)
    assert torch.equal(packed, x) and packed.stride() == (24, 24, 8, 1)


@pytest.mark.parametrize(
    "cut",
    [lambda x: x[1:, :16], lambda x: x[:, 1:17], lambda x: x.mT, lambda x: x.flatten()[4:36].view(2, 16)],
    ids=range(4),
)
def test_the_copy_engine_gets_what_it_can_address(cut):
    """Rows of whole 16 bytes at a multiple of 16. Here rows have 20 float32, so that not every copy is aligned."""
    x = cut(torch.randn(20, 20))
    copy = for_copy_engine(x)
    assert torch.equal(copy, x) and copy.stride(1) == 1
    assert copy.stride(0) % 4 == 0 and copy.data_ptr() % 16 == 0
    assert (copy is x) == (x.stride(1) == 1 and x.data_ptr() % 16 == 0)
