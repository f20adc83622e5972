"""What holds of every operator: traced as it runs, differentiated once, wrong arguments named."""

from functools import partial

import pytest
import torch
from fused_cases import EPS, draw, scored_logits
from recurrences import OPCHECKS, mesa_inputs, random_inputs

from mixerlab.kernels.fused import (
    Embedded,
    Form,
    Part,
    add_rms_norm,
    cross_entropy,
    embedded_add_rms_norm,
    embedding,
    gated_rms_norm,
    linear,
    norm_heads,
    norm_linear,
    rms_norm,
    split_heads,
    swiglu,
    swiglu_mlp,
)
from mixerlab.kernels.fused.cross_entropy.operator import mean_losses, mean_losses_backward
from mixerlab.kernels.fused.embedding.operator import look_up, look_up_backward
from mixerlab.kernels.fused.embedding_norm.operator import look_up_add_norm, look_up_add_norm_backward, sum_add_norm
from mixerlab.kernels.fused.gated_norm.operator import gated_norm, gated_norm_backward
from mixerlab.kernels.fused.gates.operator import gates, gates_backward
from mixerlab.kernels.fused.heads.operator import norm as norm_of_heads
from mixerlab.kernels.fused.heads.operator import split, split_backward
from mixerlab.kernels.fused.heads.parts import lists_of
from mixerlab.kernels.fused.linear.operator import matrix_product, weight_gradient
from mixerlab.kernels.fused.mlp.operator import mlp, mlp_backward
from mixerlab.kernels.fused.norm_linear.operator import norm_linear_rows, norm_linear_rows_backward
from mixerlab.kernels.fused.rms_norm.operator import add_norm, norm, norm_backward
from mixerlab.kernels.fused.swiglu.operator import gated, gated_backward, gated_packed, gated_packed_backward
from mixerlab.kernels.gated_delta_rule import gated_delta_rule
from mixerlab.kernels.gated_delta_rule import operator as delta_rule
from mixerlab.kernels.kimi_delta_rule import kimi_delta_rule
from mixerlab.kernels.mesa import mesa
from mixerlab.kernels.mesa import operator as mesa_operator
from mixerlab.kernels.optimizer.newton_schulz import orthogonalise
from mixerlab.kernels.parallax import parallax_attention
from mixerlab.kernels.parallax.operator import parallax_short_forward
from mixerlab.kernels.parallax.projected import projected_parallax
from mixerlab.kernels.selective_scan import selective_scan
from mixerlab.kernels.selective_scan.block import mamba_block
from mixerlab.kernels.selective_scan.block.operator import block
from mixerlab.kernels.selective_scan.operator import scan
from mixerlab.kernels.short_convolution import short_convolution
from mixerlab.kernels.short_convolution.heads import convolve_heads
from mixerlab.kernels.short_convolution.heads.operator import convolve, convolve_backward
from mixerlab.kernels.short_convolution.operator import convolution
from mixerlab.kernels.softmax_attention import softmax_attention
from mixerlab.kernels.softmax_attention.operator import short_attention

BF16, F32 = torch.bfloat16, torch.float32
FORMS = [Part(3, 10, Form.RMS_NORM_ROTARY), Part(1, 5), Part(2, 10, Form.UNIT_NORM), Part(2, 10, Form.RMS_NORM)]
COPIED = [Part(2, 8, Form.UNIT_NORM), Part(2, 8, Form.COPY), Part(1, 5)]
MAMBA = ((3, 4), (3,), (10, 3), (3, 2), (3,), (3, 4), (3,))  # conv weight, bias, x_proj, dt_proj, dt_bias, A_log, D


def fused_calls(device):
    """Operators with arguments for them, two groups of parameters if they have groups."""
    x, gain, weight, bias = draw((2, 5, 8), (2, 8), (2, 3, 8), (2, 3), device=device)
    grad, half, gate_up = draw((2, 5, 3), (2, 5, 8), (5, 6), device=device, seed=1)
    tokens = torch.tensor([[0, 3, 3, 1, 2], [1, 0, 2, 0, 0]], device=device)
    table, y, zero = x[:, :4], half.to(BF16), torch.zeros((), device=device).expand(x.shape)
    logits, targets = scored_logits((2, 3), 4, device)
    loss, count, log_sum = mean_losses(logits, targets)
    gate, up = gate_up.chunk(2, dim=1)
    shapes = (2, 5, 8), (2, 32, 8), (2, 8, 16)
    layer = draw(*shapes, device=device)
    yield from (
        (norm, (x, gain, EPS, BF16)),
        (add_norm, (x, y, gain, EPS, BF16)),
        (norm_backward, (x, x, x, gain, EPS, BF16)),
        (gated_norm, (x, x.unflatten(1, (-1, 1)).flatten(2), gain, EPS, False)),
        (gated_norm_backward, (x, x, x, gain, EPS, False)),
        (gated, (gate, up)),
        (gated_backward, (up, gate, up)),
        (gated_packed, (gate_up,)),
        (gated_packed_backward, (up, gate_up)),
        (mean_losses, (logits, targets)),
        (mean_losses_backward, (loss, logits, targets, count, log_sum)),
        (look_up, (tokens, table)),
        (look_up_backward, (x, tokens, table)),
        (look_up_add_norm, (tokens, table, y, gain, EPS, BF16)),
        (look_up_add_norm_backward, (x, None, tokens, table, y, gain, EPS)),
        (sum_add_norm, (zero, tokens, table, half, y, gain, EPS, BF16)),
        (mlp, tuple(layer)),
        (mlp_backward, (layer[0], *layer)),
    )
    for update in (None, half, y):
        yield norm_linear_rows, (x, update, gain, weight, bias, EPS, F32)
        yield norm_linear_rows_backward, (grad, x, update, gain, weight, EPS, F32)
    for rows in (5, 300):  # without and with parts
        x, weight, grad = draw((2, rows, 8), (2, 4, 8), (2, rows, 4), device=device)
        yield matrix_product, (x, weight)
        yield weight_gradient, (grad, x)


def heads_calls(device):
    columns = sum(part.heads * part.width for part in FORMS)
    frequency, gains, packed = draw((5,), (2, 2, 10), (2, 4, columns), device=device)
    grads = draw(*((2, 4, part.heads, part.width) for part in FORMS), device=device)
    rest = packed, frequency, gains, EPS, *lists_of(FORMS)
    yield split, rest
    yield split_backward, (grads, *rest)
    (packed,) = draw((2, 4, 40), device=device)
    yield norm_of_heads, (packed, gains[:, :1], EPS, *lists_of([Part(2, 10, Form.RMS_NORM), Part(2, 10, Form.COPY)]))
    packed, d_gates, of_channel, of_head = draw((2, 4, 7), (2, 4, 7), (2, 4), (2, 3), device=device)
    for rate in (None, of_channel):
        logits = packed[..., :4], packed[..., 4:], of_channel, rate, of_head
        yield gates, logits
        yield gates_backward, (d_gates[..., :4], d_gates[..., 4:], *logits)
    packed, weight = draw((2, 5, 40), (1, 32, 4), device=device)
    grads = draw(*((2, 5, part.heads, part.width) for part in COPIED), device=device)
    yield convolve, (packed, weight, *lists_of(COPIED))
    yield convolve_backward, (grads, packed, weight, *lists_of(COPIED))


@pytest.mark.parametrize("calls", [fused_calls, heads_calls])
def test_traced_shapes_and_dtypes_are_the_real_ones(device, calls):
    """What `torch.compile` assumes of each operator: results' shapes, dtypes and strides, no input changed."""
    for operator, arguments in calls(device):
        torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_recurrences_trace_as_they_run(device):
    """PyTorch's own check also of the registration of their gradients."""
    make = partial(draw, device=device)
    u, delta, z, bias, A, D, both = make((2, 5, 3), (2, 5, 3), (2, 5, 3), (1, 3), (1, 3, 4), (1, 3), (2, 5, 8))
    calls = [(scan, (u, delta, bias, -A.abs(), both, D, z))]
    conv_weight, conv_bias, x_proj, dt_proj, dt_bias, A_log, D = (p[None] for p in make(*MAMBA))
    calls += [(block, (*make((2, 5, 6)), x_proj, dt_proj, conv_weight, conv_bias, dt_bias, A_log, D))]
    calls += [(convolution, (u, *make((1, 3, 4), (1, 3))))]
    for operator, arguments in calls:
        torch.library.opcheck(operator, tuple(t.detach().requires_grad_() for t in arguments), test_utils=OPCHECKS)


def test_chunked_recurrences_trace_as_they_run(device):
    inputs = random_inputs(1, 1, 17, dtype=F32, device=device)
    with_ridge = mesa_inputs(1, batch=1, length=17, dtype=F32, device=device)
    with_ridge[-1] = with_ridge[-1][None]
    saved_inputs = [inputs[i] for i in (0, 1, 3, 4)], with_ridge
    for module, given, kept, rest in zip(
        (delta_rule, mesa_operator), (inputs, with_ridge), saved_inputs, ((0.5, 16), (1, 16)), strict=True
    ):
        out, *saved = module.forward(*given, *rest)
        arguments = (torch.ones_like(out), *kept, *saved, *rest)
        torch.library.opcheck(module.backward, arguments, test_utils=OPCHECKS)
        leaves = [x.detach().requires_grad_() for x in given]
        torch.library.opcheck(module.forward, (*leaves, *rest), test_utils=OPCHECKS)


def embedded_norm(table, y, gain, wanted=1):
    tokens = torch.tensor([[0, 3, 3, 1, 2]], device=y.device)
    result = embedded_add_rms_norm(Embedded(tokens, table), y, gain, EPS, backend="triton")[wanted]
    return result.add_up() if wanted == 0 else result


def once_projected(x, weight, frequency):
    dtype = BF16 if x.is_cuda else F32
    return projected_parallax(x.to(dtype), weight.to(dtype), frequency.detach(), 1, backend="triton").float()


ONCE = {
    "rms_norm": (lambda x, w: rms_norm(x, w, EPS, backend="triton"), [(2, 8), (8,)]),
    "linear": (lambda x, w: linear(x, w, backend="triton").square(), [(2, 8), (4, 8)]),
    "mlp": (lambda *a: swiglu_mlp(*a, backend="triton"), [(3, 8), (32, 8), (8, 16)]),
    "embedded": (embedded_norm, [(4, 8), (1, 5, 8), (8,)]),
    "parallax": (lambda *a: parallax_attention(*a, backend="triton"), [(1, 20, 2, 16)] * 4),
    "short parallax": (lambda *a: parallax_short_forward(*a, 0.25), [(1, 20, 2, 16)] * 4),
    "projected parallax": (once_projected, [(1, 130, 16), (64, 16), (8,)]),
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
PROJECTED = zeros(1, 130, 16), zeros(64, 16), zeros(8)
ROWS = zeros(1, 130, dtype=torch.int64)


def without(arguments, position, wrong):
    return [*arguments[:position], wrong, *arguments[position + 1 :]]


TRITON = {"backend": "triton"}
WRONG = [
    (rms_norm, (X[0], zeros(4), EPS), {}, r"weight has shape \(4,\)"),
    (add_rms_norm, (X[0], zeros(3, 4), zeros(8), EPS), {}, r"y \(3, 4\)"),
    (swiglu, (zeros(2, 8), zeros(2, 4)), {}, r"up torch.float32 \(2, 4\)"),
    (swiglu_mlp, (zeros(3, 8), zeros(30, 8), zeros(8, 16)), {}, r"pass gate_up \[2 H, D\] and down \[D, H\]"),
    (embedding, (ROWS[0], zeros(2, 3, 5)), {}, r"weight has shape \(2, 3, 5\)"),
    (embedded_add_rms_norm, (Embedded(ROWS[:, :3], zeros(5, 8)), X, zeros(8), EPS), {}, r"and y \(2, 3, 8\)"),
    (linear, (zeros(2, 8), zeros(4, 7)), {}, r"weight has shape \(4, 7\) and x \(2, 8\)"),
    (linear, (zeros(2, 8), zeros(4, 8, dtype=BF16)), {}, "x is torch.float32 and weight torch.bfloat16"),
    (norm_linear, (X, X, zeros(8), zeros(4, 8), zeros(3), EPS), {}, r"weight \(4, 8\), bias \(3,\)"),
    (cross_entropy, (zeros(2, 3, 5), ROWS[0, :2]), {}, r"targets \(2,\)"),
    (gated_rms_norm, (zeros(1, 3, 2, 8), zeros(1, 3, 16), zeros(1), EPS), {}, r"and weight \(1,\)"),
    (norm_heads, (zeros(3, 16), (1, 1), 8, (zeros(4), None), EPS), {}, r"gains have shapes \[\(4,\)\] for .* \[8\]"),
    (split_heads, (X, [Part(3, 4)]), {}, r"packed has shape \(2, 3, 8\).* 12 columns"),
    (split_heads, (X, [ROTARY], zeros(4)), {}, r"inverse_frequency has shape \(4,\): heads of 4 need \(2,\)"),
    (split_heads, (X, [NORMED, NORMED], None, [zeros(4)], EPS), {}, r"gains have shapes \[\(4,\)\] for .* \[4, 4\]"),
    (convolve_heads, (X, zeros(7, 4), [Part(2, 4, Form.COPY)]), {}, r"the parts end at columns \[8\]: .* not 7"),
    (short_convolution, (zeros(2, 5, 3), zeros(2, 4), zeros(3)), {}, r"weight \(2, 4\)"),
    (short_convolution, (zeros(2, 5, 3), zeros(3, 5)), TRITON, "at most 4 taps, not 5"),
    (gated_delta_rule, without(DELTA, 0, DELTA[0][0]), {}, "q has shape"),
    (gated_delta_rule, DELTA, {"scale": float("nan")}, "scale=nan"),
    (gated_delta_rule, [x.double() for x in DELTA], TRITON, "dtype=torch.float64"),
    (kimi_delta_rule, without(DELTA, 3, zeros(2, 5, 2, 1)), {}, r"log_decay has shape \(2, 5, 2, 1\)"),
    (mesa, [*DELTA, zeros(16)], {}, "ridge has shape"),
    (mesa, [*DELTA, zeros(2, 16)], {"iterations": 0}, "iterations=0"),
    (selective_scan, without(SCAN, 1, zeros(2, 5, 2)), {}, "^delta has shape"),
    (mamba_block, without(BLOCK, 0, zeros(2, 5, 5)), {}, r"pass xz \[batch, T, 6\]"),
    (mamba_block, without(BLOCK, 1, zeros(2, 4)), {}, r"conv_weight has shape \(2, 4\): pass \[3, taps\]"),
    (parallax_attention, without(QKV, 2, zeros(1, 4, 2, 8, dtype=torch.int32)), {}, "k.dtype=torch.int32"),
    (parallax_attention, without(QKV, 3, zeros(1, 4, 2, 8).to("meta")), {}, "v is on meta"),
    (parallax_attention, without(QKV, 1, zeros(1, 3, 2, 8)), {}, r"rho has shape \(1, 3, 2, 8\)"),
    (parallax_attention, [*[zeros(1, 4, 3, 8)] * 2, *QKV[2:]], {}, "q has 3 heads, not a multiple of the 2"),
    (parallax_attention, QKV, {"scale": float("nan")}, "scale=nan"),
    (parallax_attention, QKV, {"window": 0}, "window=0"),
    (projected_parallax, (*PROJECTED, 3), {}, r"weight has shape \(64, 16\) and heads=3: pass 4 heads D rows"),
    (projected_parallax, (PROJECTED[0][0], *PROJECTED[1:], 1), {}, r"pass a non-empty \[B, T, K\]"),
    (orthogonalise, (zeros(2, 46), ((5, 9),)), {}, r"float32 \[R, 45\]"),
    (orthogonalise, (zeros(1, 130**2), ((130, 130),)), TRITON, "at most 128, not 130"),
]


@pytest.mark.parametrize(("function", "arguments", "options", "message"), WRONG)
def test_wrong_arguments_are_named(function, arguments, options, message, device):
    if options is TRITON:  # which runs on no other device
        arguments = [x.to(device) if isinstance(x, torch.Tensor) else x for x in arguments]
    with pytest.raises((ValueError, TypeError), match=message):
        function(*arguments, **options)
