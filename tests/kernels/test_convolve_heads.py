"""`convolve_heads` against its formula in float64: head sizes, lengths, and what the kernel does not take."""

import pytest
import torch
from cases import BACKENDS, BFLOAT16, check, check_close, double, draw, run, same_bits, traced
from formulas import convolution
from test_heads import plain as split

from mixerlab.kernels.fused import Form, Part
from mixerlab.kernels.short_convolution.heads import convolve_heads

PADDING = 3


def parts_of(heads, width, forms="nnc"):
    """Convolved parts, normed and copied, then some of each other form. Few widths are powers of two."""
    convolved = [
        Part(count, width, Form.UNIT_NORM if form == "n" else Form.COPY)
        for count, form in zip(heads, forms, strict=True)
    ]
    others = [Part(1, 5), Part(heads[0], 3, Form.COPY), Part(heads[0], 1), Part(2, 3, Form.UNIT_NORM)]
    return convolved, [*convolved, *others]


def make_inputs(batch, length, convolved, parts, taps, device, seed=0):
    columns, channels = (sum(part.heads * part.width for part in some) for some in (parts, convolved))
    return draw((batch, length, columns + PADDING), (channels, taps), device=device, seed=seed)


def plain(packed, weight, parts):
    channels = len(weight)
    return split(torch.cat((convolution(packed[..., :channels], weight), packed[..., channels:]), dim=-1), parts)


# (batch, T, heads of each convolved part, their width, taps, forms of these parts); a program takes at most 32 * 128
# elements forward and 128 * 128 backward.
CASES = [
    (1, 1, (1, 1, 1), 64, 4, "nnc"),
    (2, 9, (1, 3), 7, 4, "nc"),
    pytest.param((1, 70, (2, 2, 4), 64, 4, "nnc"), marks=pytest.mark.slow),
    pytest.param((3, 21, (4, 1, 3, 2), 24, 4, "nnnc"), marks=pytest.mark.slow),
    pytest.param((2, 6, (1, 3, 2), 1, 2, "ccc"), marks=pytest.mark.slow),
    (1, 17, (2,), 40, 3, "c"),
    pytest.param((1, 133, (1, 1), 128, 4, "nc"), marks=pytest.mark.slow),
    (1, 5, (1, 1, 1), 96, 1, "nnc"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_is_the_formula(device, case, backend):
    batch, length, heads, width, taps, forms = case
    convolved, parts = parts_of(heads, width, forms)
    inputs = make_inputs(batch, length, convolved, parts, taps, device)
    actual = run(lambda x, w: convolve_heads(x, w, parts, backend=backend), inputs)
    check(actual, run(lambda x, w: plain(x, w, parts), double(inputs)))
    assert not actual[-2][..., -PADDING:].any()
    if backend == "triton":
        assert all(x.is_contiguous() for x, part in zip(actual, parts, strict=False) if part.form != Form.VIEW)


def test_a_unit_norm_of_zeros_is_zero(device):
    inputs = torch.zeros(1, 3, 8, device=device), torch.ones(8, 4, device=device)
    with traced():
        norm, *gradients = run(
            lambda x, w: convolve_heads(x, w, [Part(2, 4, Form.UNIT_NORM)], backend="triton"), inputs
        )
    assert not norm.any() and all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("backend", ["reference", pytest.param("triton", marks=pytest.mark.gpu)])
def test_dtypes(device, backend):
    convolved, parts = parts_of((3, 3, 1), 7)
    packed, weight = make_inputs(2, 9, convolved, parts, 4, device)
    inputs = [packed.bfloat16(), weight]
    actual = run(lambda x, w: convolve_heads(x, w, parts, backend=backend), inputs)
    assert [x.dtype for x in actual] == [*[torch.bfloat16] * (len(parts) + 1), torch.float32]
    tolerance = BFLOAT16 if backend == "triton" else 2 * BFLOAT16  # the reference rounds before the norm too
    check(actual, run(lambda x, w: plain(x, w, parts), double(inputs)), tolerance)


UNFIT = [
    ([Part(2, 4, Form.COPY)], 5, "at most 4 taps, not 5"),
    ([Part(2, 4, Form.COPY), Part(1, 8, Form.COPY)], 4, "of one width"),
    ([Part(1, 130, Form.UNIT_NORM)], 4, "heads of at most 128"),
    ([Part(2, 4, Form.COPY), Part(2, 4, Form.UNIT_NORM)], 4, "of unit norm first"),
]


@pytest.mark.parametrize("parts, taps, message", UNFIT, ids=[message for *_, message in UNFIT])
def test_what_the_kernel_does_not_take(device, parts, taps, message):
    """`triton` says why; `auto` runs the operators one by one."""
    inputs = make_inputs(2, 6, parts, parts, taps, device)
    with pytest.raises(ValueError, match=message):
        convolve_heads(*inputs, parts, backend="triton")
    check_close(lambda x, w: convolve_heads(x, w, parts), lambda x, w: plain(x, w, parts), inputs)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "batch, length, heads, width",
    [(6, 128, (2, 2, 2), 64), (6, 128, (2, 2, 4), 64), (3, 333, (3, 3, 1), 96), (2, 2048, (8, 8, 16), 16)],
)
def test_in_bfloat16(device, batch, length, heads, width):
    convolved, parts = parts_of(heads, width)
    packed, weight = make_inputs(batch, length, convolved, parts, 4, device)
    inputs = [packed.bfloat16(), weight]
    same_bits(lambda x, w: convolve_heads(x, w, parts), lambda x, w: plain(x, w, parts), inputs)
