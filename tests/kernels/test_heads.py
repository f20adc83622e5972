"""`split_heads` against its formula in float64: every form, the packed gradient, odd sizes."""

import pytest
import torch
from cases import BACKENDS, BFLOAT16, check, double, draw, run, same_bits
from formulas import EPS, of_length_one, plain_norm, rotary

from mixerlab.kernels.fused import Form, Part, rotary_heads, split_heads
from mixerlab.kernels.fused.heads import triton_kernels
from mixerlab.kernels.fused.heads.parts import columns_of
from mixerlab.kernels.parallax.triton_tiles import pair_descriptor

WIDTH = 10  # not a power of two, nor are the 3 heads, the 19 positions and the columns below
PADDING = 3
PARTS = [
    Part(3, WIDTH, Form.ROTARY),
    Part(1, 5),
    Part(3, 7, Form.UNIT_NORM),
    Part(2, WIDTH, Form.ROTARY),
    Part(3, 7, Form.COPY),
    Part(2, 1, Form.COPY),
]
# With gains: also the first part and the last, and forms without a gain between them.
NORMED = [
    Part(3, WIDTH, Form.RMS_NORM_ROTARY),
    Part(1, 5),
    Part(2, WIDTH, Form.RMS_NORM),
    Part(2, 7, Form.UNIT_NORM),
    Part(1, WIDTH, Form.ROTARY),
    Part(1, WIDTH, Form.RMS_NORM_ROTARY),
]
each_list = pytest.mark.parametrize("parts", [PARTS, NORMED], ids=["without gains", "with gains"])
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def gains_of(parts):
    return [(part.width,) for part in parts if part.form.has_gain]


def frequencies(width, device):
    return 100.0 ** (-torch.arange(0, width, 2, device=device) / width)


def plain(packed, parts, frequency=None, gains=()):
    results, start, gains = [], 0, iter(gains)
    for heads, width, form in parts:
        x = packed[..., start : start + heads * width].unflatten(-1, (heads, width))
        start += heads * width
        if form in (Form.RMS_NORM, Form.RMS_NORM_ROTARY):
            x = plain_norm(x, next(gains))
        if form in (Form.ROTARY, Form.RMS_NORM_ROTARY):
            x = rotary(x, frequency)
        elif form == Form.UNIT_NORM:
            x = of_length_one(x)
        results.append(x)
    return results


def both(parts, inputs, backend):
    width = max(part.width for part in parts)
    frequency = frequencies(width, inputs[0].device)
    actual = run(lambda x, *gains: split_heads(x, parts, frequency, gains, EPS, backend=backend), inputs)
    return actual, run(lambda x, *gains: plain(x, parts, frequency, gains), double(inputs))


@each_backend
@each_list
@pytest.mark.parametrize("padding", [0, PADDING])
def test_every_form(device, padding, parts, backend):
    inputs = draw((2, 19, columns_of(parts) + padding), *gains_of(parts), device=device)
    actual, expected = both(parts, inputs, backend)
    check(actual, expected)
    assert not actual[len(parts)][..., columns_of(parts) :].any()
    if backend == "triton":
        assert all(x.is_contiguous() for x, part in zip(actual, parts, strict=False) if part.form != Form.VIEW)


@each_backend
@pytest.mark.parametrize("form", Form)
def test_one_part_alone(device, form, backend):
    parts = [Part(2, 16, form)]
    check(*both(parts, draw((1, 70, 32), *gains_of(parts), device=device), backend))


def test_gains_of_programs_that_take_several_blocks(device, monkeypatch):
    """As for many positions: three programs share 5 sequences of 3 blocks each, and so begin within a sequence."""
    monkeypatch.setattr(triton_kernels, "processors", lambda device: 3)
    monkeypatch.setattr(triton_kernels, "SUMMING_PROGRAMS", 1)
    parts = [Part(2, 32, Form.RMS_NORM_ROTARY), Part(2, 32, Form.RMS_NORM)]
    check(*both(parts, draw((5, 37, 128), (32,), (32,), device=device), "triton"))


@each_backend
def test_rotary_heads(device, backend):
    frequency = frequencies(6, device)
    inputs = draw((2, 5, 4 * 12), (6,), (6,), device=device)
    forms = Form.RMS_NORM_ROTARY, Form.ROTARY, Form.VIEW, Form.RMS_NORM
    rotated = True, True, False, False

    def of(x, *gains):
        return rotary_heads(x, 2, frequency, rotated, (gains[0], None, None, gains[1]), EPS, backend=backend)

    actual = run(of, inputs)
    expected = [Part(2, 6, form) for form in forms]
    check(actual, run(lambda x, *gains: plain(x, expected, frequency, gains), double(inputs)))
    without = rotary_heads(inputs[0], 2, frequency, rotated, backend=backend)
    expected = [Part(2, 6, Form.ROTARY if rotates else Form.VIEW) for rotates in rotated]
    check(without, plain(inputs[0].double(), expected, frequency))


def test_queries_and_probes_lie_as_the_backward_of_parallax_reads_them(device):
    for length in range(20, 30):
        packed, rotated = torch.randn(2, length, 64, device=device), (True, True, False, True)
        q, _, _, rho = rotary_heads(packed, 2, frequencies(8, device), rotated, backend="triton")
        assert pair_descriptor(q, rho, 32).base is q


def test_a_unit_norm_of_zeros_is_zero(device):
    packed = torch.zeros(1, 3, 8, device=device)
    norm, grad = run(lambda x: split_heads(x, [Part(2, 4, Form.UNIT_NORM)], backend="triton"), [packed])
    assert not norm.any() and grad.isfinite().all()


@each_backend
@pytest.mark.parametrize(("parts", "gain_dtype"), [(PARTS, None), (NORMED, torch.float32), (NORMED, torch.bfloat16)])
def test_dtypes(device, parts, gain_dtype, backend):
    """The results have the dtype of `packed`, whatever that of the gains, and each gradient that of its input."""
    packed, *gains = draw((2, 9, columns_of(parts)), *gains_of(parts), device=device)
    actual, expected = both(parts, [packed.bfloat16(), *(gain.to(gain_dtype) for gain in gains)], backend)
    number = len(parts) + 1
    assert [x.dtype for x in actual] == [torch.bfloat16] * number + [gain_dtype] * len(gains)
    check(actual[:number], expected[:number], BFLOAT16)
    # Triton's interpreter cuts bits off where a GPU rounds: an element changes by up to 2^-7, and a gain has only ten.
    check(actual[number:], expected[number:], 2 * BFLOAT16)


@pytest.mark.gpu
@pytest.mark.parametrize("batch, length, heads, width", [(6, 128, 2, 64), (3, 333, 3, 96), (2, 2048, 8, 16)])
def test_in_bfloat16(device, batch, length, heads, width):
    frequency = frequencies(width, device)
    parts = [Part(heads, width, form) for form in (*Form, Form.ROTARY)] + [Part(heads, 1, Form.COPY)]
    packed = draw((batch, length, columns_of(parts) + PADDING), device=device, dtype=torch.bfloat16)
    inputs = packed + draw((width,), (width,), device=device, seed=1)
    same_bits(
        lambda x, *gains: split_heads(x, parts, frequency, gains, EPS),
        lambda x, *gains: plain(x, parts, frequency, gains),
        inputs,
    )
