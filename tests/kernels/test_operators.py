"""What holds of every operator: it is differentiated once, and wrong arguments are named."""

import pytest
import torch
from formulas import EPS
from fused_cases import draw
from test_population_step import for_moments, for_parameters
from torch.utils._pytree import tree_map_only

from mixerlab.kernels import fused
from mixerlab.kernels.fused import Form, Part, split_heads
from mixerlab.kernels.gated_delta_rule import gated_delta_rule
from mixerlab.kernels.kimi_delta_rule import kimi_delta_rule
from mixerlab.kernels.local_linear import solved_probe
from mixerlab.kernels.mesa import mesa
from mixerlab.kernels.optimizer.join_columns import join_columns
from mixerlab.kernels.optimizer.newton_schulz import orthogonalise
from mixerlab.kernels.optimizer.population_step import update_moments, update_parameters
from mixerlab.kernels.parallax import parallax_attention
from mixerlab.kernels.parallax.decode import parallax_decode
from mixerlab.kernels.parallax.operator import parallax_short_forward
from mixerlab.kernels.selective_scan import selective_scan
from mixerlab.kernels.selective_scan.block import mamba_block
from mixerlab.kernels.short_convolution import short_convolution
from mixerlab.kernels.short_convolution.heads import convolve_heads
from mixerlab.kernels.softmax_attention import softmax_attention
from mixerlab.kernels.softmax_attention.operator import short_attention

BF16, F32 = torch.bfloat16, torch.float32
MAMBA = ((3, 4), (3,), (10, 3), (3, 2), (3,), (3, 4), (3,))  # conv weight, bias, x_proj, dt_proj, dt_bias, A_log, D


ONCE = {
    "rms_norm": (lambda x, w: fused.rms_norm(x, w, EPS, backend="triton"), [(2, 8), (8,)]),
    "linear": (lambda x, w: fused.linear(x, w, backend="triton").square(), [(2, 8), (4, 8)]),
    "mlp": (lambda *a: fused.swiglu_mlp(*a, backend="triton"), [(3, 8), (32, 8), (8, 16)]),
    "add_rms_norm": (lambda x, y, w: fused.add_rms_norm(x, y, w, EPS, backend="triton")[1], [(2, 8), (2, 8), (8,)]),
    "parallax": (lambda *a: parallax_attention(*a, backend="triton"), [(1, 20, 2, 16)] * 4),
    "short parallax": (lambda *a: parallax_short_forward(*a, 0.25), [(1, 20, 2, 16)] * 4),
    "short softmax": (short_attention, [(1, 20, 2, 16)] * 3),
    "softmax by PyTorch": (softmax_attention, [(1, 20, 2, 16)] * 3),
}


@pytest.mark.parametrize("name", ONCE)
def test_second_gradients_are_refused(device, name):
    function, shapes = ONCE[name]
    if device == "cuda" and name.startswith("short"):
        pytest.skip("full-precision products of these tiles do not fit a multiprocessor")
    inputs = [x.requires_grad_() for x in draw(*shapes, device=device)]
    (grad,) = torch.autograd.grad(function(*inputs).square().sum(), inputs[1], create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        grad.sum().backward()


def zeros(*shape, dtype=F32):
    return torch.zeros(shape, dtype=dtype)


ROTARY, NORMED = Part(2, 4, Form.ROTARY), Part(1, 4, Form.RMS_NORM)
X, QKV = zeros(2, 3, 8), [zeros(1, 4, 2, 8)] * 4
DELTA = [zeros(2, 5, 2, 16)] * 3 + [zeros(2, 5, 2)] * 2
BLOCK = [zeros(*shape) for shape in ((2, 5, 6), *MAMBA)]
SCAN = [zeros(2, 5, 3), zeros(2, 5, 3), zeros(3), zeros(3, 4), zeros(2, 5, 4), zeros(2, 5, 4), zeros(3), zeros(2, 5, 3)]
CACHED = [zeros(2, 1, 4, 16)] * 2 + [zeros(2, 40, 2, 16)] * 2
ROWS = zeros(1, 130, dtype=torch.int64)


def without(arguments, position, wrong):
    return [*arguments[:position], wrong, *arguments[position + 1 :]]


MOMENTS, MOVED = for_moments("cpu", 5), for_parameters("cpu", 5)
TRITON = {"backend": "triton"}
WRONG = [
    (fused.rms_norm, (X[0], zeros(4), EPS), {}, r"weight has shape \(4,\)"),
    (fused.add_rms_norm, (X[0], zeros(3, 4), zeros(8), EPS), {}, r"y \(3, 4\)"),
    (fused.swiglu, (zeros(2, 8), zeros(2, 4)), {}, r"up torch.float32 \(2, 4\)"),
    (fused.swiglu_mlp, (zeros(3, 8), zeros(30, 8), zeros(8, 16)), {}, r"pass gate_up \[2 H, D\] and down \[D, H\]"),
    (fused.embedding, (ROWS[0], zeros(2, 3, 5)), {}, r"weight has shape \(2, 3, 5\)"),
    (fused.linear, (zeros(2, 8), zeros(4, 7)), {}, r"weight has shape \(4, 7\) and x \(2, 8\)"),
    (fused.linear, (zeros(2, 8), zeros(4, 8, dtype=BF16)), {}, "x is torch.float32 and weight torch.bfloat16"),
    (fused.cross_entropy, (zeros(2, 3, 5), ROWS[0, :2]), {}, r"targets \(2,\)"),
    (split_heads, (X, [Part(3, 4)]), {}, r"packed has shape \(2, 3, 8\).* 12 columns"),
    (split_heads, (X, [ROTARY], zeros(4)), {}, r"inverse_frequency has shape \(4,\): heads of 4 need \(2,\)"),
    (
        split_heads,
        (X, [NORMED, NORMED], None, [zeros(4)], EPS),
        {},
        r"gains have shapes \[\(4,\)\] for .* \[4, 4\]",
    ),
    (convolve_heads, (X, zeros(7, 4), [Part(2, 4, Form.COPY)]), {}, r"the parts end at columns \[8\]: .* not 7"),
    (short_convolution, (zeros(2, 5, 3), zeros(2, 4), zeros(3)), {}, r"weight \(2, 4\)"),
    (short_convolution, (zeros(2, 5, 3), zeros(3, 5)), TRITON, "at most 4 taps, not 5"),
    (gated_delta_rule, without(DELTA, 0, DELTA[0][0]), {}, "q has shape"),
    (gated_delta_rule, DELTA, {"scale": float("nan")}, "scale=nan"),
    (gated_delta_rule, [x.double() for x in DELTA], TRITON, "dtype=torch.float64"),
    (kimi_delta_rule, without(DELTA, 3, zeros(2, 5, 2, 1)), {}, r"log_decay has shape \(2, 5, 2, 1\)"),
    (mesa, [*DELTA, zeros(16)], {}, "ridge has shape"),
    (mesa, [*DELTA, zeros(2, 16)], {"iterations": 0}, "iterations=0"),
    (softmax_attention, (QKV[0], zeros(1, 4, 1, 8), QKV[2]), {}, r"k has shape \(1, 4, 1, 8\)"),
    (solved_probe, (QKV[0], zeros(1, 4, 1, 8)), {"scale": 1.0, "ridge": 1.0}, r"k has shape \(1, 4, 1, 8\)"),
    (selective_scan, without(SCAN, 1, zeros(2, 5, 2)), {}, "^delta has shape"),
    (mamba_block, without(BLOCK, 0, zeros(2, 5, 5)), {}, r"xz has shape \(2, 5, 5\): pass \[batch, T, 6\]"),
    (mamba_block, without(BLOCK, 1, zeros(2, 4)), {}, r"conv_weight has shape \(2, 4\): pass \[3, taps\]"),
    (parallax_attention, without(QKV, 2, zeros(1, 4, 2, 8, dtype=torch.int32)), {}, "k.dtype=torch.int32"),
    (parallax_attention, without(QKV, 3, zeros(1, 4, 2, 8).to("meta")), {}, "v is on meta"),
    (parallax_attention, without(QKV, 1, zeros(1, 3, 2, 8)), {}, r"rho has shape \(1, 3, 2, 8\)"),
    (parallax_attention, [*[zeros(1, 4, 3, 8)] * 2, *QKV[2:]], {}, "q has 3 heads, not a multiple of the 2"),
    (parallax_attention, QKV, {"scale": float("nan")}, "scale=nan"),
    (parallax_attention, QKV, {"window": 0}, "window=0"),
    (parallax_decode, CACHED, {"lengths": torch.tensor([1, 2])}, "lengths is torch.int64"),
    (parallax_decode, CACHED, {"window": 0}, "window=0"),
    (parallax_decode, without(CACHED, 0, zeros(2, 9, 4, 16)), {}, r"\(2, 9, 4, 16\)"),
    (parallax_decode, without(CACHED, 2, zeros(2, 40, 3, 16)), {}, r"\(2, 40, 3, 16\)"),
    (fused.gates, (X, X[..., :3], zeros(2)), {}, r"decay_bias has shape \(2,\): pass a number for each of 8 columns"),
    (join_columns, ([zeros(2, 3), zeros(3, 3)],), TRITON, "one R"),
    (join_columns, ([zeros(2, 3)], torch.float64), TRITON, "gives float32, not torch.float64"),
    (join_columns, ([zeros(2, 3, dtype=torch.float16)],), TRITON, "not torch.float16"),
    (orthogonalise, (zeros(2, 46), ((5, 9),)), {}, r"float32 \[R, 45\]"),
    (update_moments, (), MOMENTS | {"steps_taken": zeros(1)}, r"steps_taken is .*\[1\]"),
    (update_moments, (), MOMENTS | {"matrices": 5001}, "matrices=5001 must be from 0 to 5000"),
    (update_parameters, (), MOVED | {"polar": zeros(5, 3).mT}, "polar is torch.float32 .* with strides"),
    (update_parameters, (), MOVED | {"schedule": zeros(4, 0)}, r"schedule.shape\[1\]=0 must be from 1"),
    (orthogonalise, (zeros(1, 130**2), ((130, 130),)), TRITON, "at most 128, not 130"),
]


@pytest.mark.parametrize(("function", "arguments", "options", "message"), WRONG)
def test_wrong_arguments_are_named(function, arguments, options, message, device):
    if options is TRITON:  # which runs on no other device
        arguments = tree_map_only(torch.Tensor, lambda x: x.to(device), arguments)
    with pytest.raises((ValueError, TypeError), match=message):
        function(*arguments, **options)
