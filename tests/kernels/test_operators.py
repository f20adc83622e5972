"""What holds of every operator: replicas, strides, what a compiler takes it for, one gradient, wrong arguments."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import BACKENDS, FLOAT32, Recorded, check_replicas, draw, run
from every_mixer import prefer_kernels
from formulas import EPS
from test_heads import NORMED as WITH_GAINS
from test_heads import PARTS, columns_of, frequencies
from test_population_step import for_moments, for_parameters
from test_recurrences import kimi_inputs, mesa_inputs, probe_inputs, random_inputs, solved
from test_selective_scan import block_inputs, make_inputs
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from mixerlab.kernels import fused
from mixerlab.kernels.centring import centred
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

F32 = torch.float32


def of(*shapes):
    """What makes the inputs of one replica."""
    return lambda seed: draw(*shapes, seed=seed)


def tokens_and(seed, vocabulary, floats):
    """Tokens `[2, 9]`, some of them without a target, and floating-point numbers."""
    return torch.randint(vocabulary, (2, 9), generator=torch.Generator().manual_seed(seed)), *draw(floats, seed=seed)


def losses(targets, logits, backend):
    return fused.cross_entropy(logits, targets.where(targets > 3, -100), backend=backend)[0]


def norm_alone(x, weight, backend):
    return fused.add_rms_norm(x, None, weight, EPS, backend=backend)


def gates(decay_logit, beta_logit, decay_bias, log_rate, beta_bias, backend):
    return fused.gates(decay_logit, beta_logit, decay_bias, log_rate=log_rate, beta_bias=beta_bias, backend=backend)


def heads(packed, *gains, parts, backend):
    return split_heads(packed, parts, frequencies(10, packed.device), gains, EPS, backend=backend)


def convolved(packed, weight, backend):
    parts = [Part(1, 3, Form.UNIT_NORM), Part(2, 3, Form.COPY), Part(1, 5), Part(2, 3, Form.UNIT_NORM)]
    return convolve_heads(packed, weight, parts, backend=backend)


SEQUENCES = {"length": 19, "dtype": F32}
QUERIES, KEYS = (1, 20, 2, 16), (1, 20, 1, 16)
OPERATORS = {  # with what makes the inputs of a replica
    "rms_norm": (partial(fused.rms_norm, eps=EPS), of((2, 9, 16), (16,))),
    "add_rms_norm": (partial(fused.add_rms_norm, eps=EPS), of((2, 9, 16), (2, 9, 16), (16,))),
    "add_rms_norm of nothing": (norm_alone, of((2, 9, 16), (16,))),
    "swiglu": (fused.swiglu, of((5, 7, 5), (5, 7, 5))),
    "swiglu_packed": (fused.swiglu_packed, of((5, 7, 6))),
    "swiglu_mlp": (fused.swiglu_mlp, of((2, 35, 24), (40, 24), (24, 20))),
    "linear": (fused.linear, of((2, 150, 12), (17, 12))),
    "linear with a bias": (fused.linear, of((2, 70, 24), (17, 24), (17,))),
    "gates": (gates, of((2, 9, 5), (2, 9, 3), (5,), (5,), (3,))),
    "embedding": (fused.embedding, partial(tokens_and, vocabulary=6, floats=(6, 5))),
    "embedding of many tokens": (fused.embedding, partial(tokens_and, vocabulary=300, floats=(300, 5))),
    "cross_entropy": (losses, partial(tokens_and, vocabulary=11, floats=(2, 9, 11))),
    "split_heads": (partial(heads, parts=PARTS), of((2, 9, columns_of(PARTS) + 3))),
    "split_heads with gains": (partial(heads, parts=WITH_GAINS), of((2, 9, columns_of(WITH_GAINS) + 3), *[(10,)] * 3)),
    "convolve_heads": (convolved, of((1, 3, 21), (9, 3))),
    "short_convolution": (short_convolution, of((2, 9, 3), (3, 4), (3,))),
    "selective_scan": (selective_scan, lambda seed: make_inputs(2, 3, 3, 4, F32, seed=seed)),
    "mamba_block": (mamba_block, lambda seed: block_inputs(2, 5, 3, 4, 2, 4, "cpu", seed)),
    "parallax_attention": (parallax_attention, of(QUERIES, QUERIES, KEYS, KEYS)),
    "short parallax": (lambda *a, backend: parallax_short_forward(*a, 0.25), of(*[QUERIES] * 4)),
    "short softmax": (lambda *a, backend: short_attention(*a), of(*[QUERIES] * 3)),
    "softmax by PyTorch": (lambda *a, backend: softmax_attention(*a), of(*[QUERIES] * 3)),
    "gated_delta_rule": (partial(gated_delta_rule, chunk_size=16), partial(random_inputs, batch=1, **SEQUENCES)),
    "kimi_delta_rule": (partial(kimi_delta_rule, chunk_size=16), partial(kimi_inputs, batch=1, heads=1, **SEQUENCES)),
    "mesa": (partial(mesa, iterations=20, chunk_size=16), partial(mesa_inputs, heads=1, **SEQUENCES)),
    "centred": (centred, partial(random_inputs, batch=1, **SEQUENCES)),
    "solved_probe": (solved, partial(probe_inputs, length=19)),
}
SHORT = ["short parallax", "short softmax"]  # without a reference
RECURRENCES = ["gated_delta_rule", "kimi_delta_rule", "mesa", "centred", "solved_probe"]


def columns(x):
    """Columns of a wider tensor, of whole heads if there are any."""
    return F.pad(x, (0, 0, 1, 2))[..., 1:-2, :] if x.ndim == 5 else F.pad(x, (1, 2))[..., 1:-2]


def gaps(x):
    """Sequences with positions between them, and parameters in a row of all parameters."""
    if x.ndim > 3:
        return F.pad(x, (0, 0) * (x.ndim - 3) + (0, 1))[:, :, :-1]
    return F.pad(x.flatten(1), (1, 2))[:, 1:-2].unflatten(1, x.shape[1:])


LAYOUTS = {  # how the i-th tensor lies, and along which axis its replicas; None: they share it
    "columns": lambda x, i: (columns(x), 0),
    "gaps": lambda x, i: (gaps(x), 0),
    "last": lambda x, i: (x[0], None) if i % 2 else (x.movedim(0, -1).contiguous(), x.ndim - 1),
}
REPLICAS = [(name, "last", "reference") for name in OPERATORS if name not in SHORT]
for i, name in enumerate(OPERATORS):
    for layout in LAYOUTS:  # every fourth operator has one in the default run
        marks = [] if layout == "columns" and i % 4 == 1 else pytest.mark.slow
        REPLICAS.append(pytest.param(name, layout, "triton", marks=marks))


def skip_if_too_large(name, device):
    if device == "cuda" and name in SHORT:
        pytest.skip("full-precision products of these tiles do not fit a multiprocessor")


@pytest.mark.parametrize(("name", "layout", "backend"), REPLICAS)
def test_a_replica_gets_what_it_gets_alone(device, name, layout, backend):
    skip_if_too_large(name, device)
    function, make = OPERATORS[name]
    inputs = [torch.stack(x).to(device) for x in zip(*map(make, range(2)), strict=True)]
    inputs, dims = zip(*(LAYOUTS[layout](x, i) for i, x in enumerate(inputs)), strict=True)
    # Their products of a batch add in another order than those of a replica.
    check_replicas(partial(function, backend=backend), inputs, dims, 1e-5 if name in RECURRENCES else FLOAT32)


FOLLOWING = ["rms_norm", "add_rms_norm", "add_rms_norm of nothing", "linear", "linear with a bias", "swiglu_mlp"]


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in (*SHORT, *FOLLOWING, "softmax by PyTorch")])
def test_autocast_changes_nothing_of_a_reference(name, device):
    function, make = OPERATORS[name]
    reference = partial(function, *(x.to(device) for x in make(0)), backend="reference")
    expected = reference()
    with torch.autocast(device, torch.bfloat16):
        torch.testing.assert_close(reference(), expected, rtol=0, atol=0)


# The steps of a solved probe are one operator, PyTorch's too.
@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in (*SHORT, "solved_probe")])
def test_a_reference_runs_no_kernel(name, monkeypatch):
    """Nor do the operators that it calls, on a GPU either."""
    prefer_kernels(monkeypatch)
    function, make = OPERATORS[name]
    with Recorded() as recorded:
        function(*make(0), backend="reference")
    assert not recorded.calls


SOLVERS = ["mesa", "solved_probe"]  # whose derivative is implicit
TWICE = [(name, "triton") for name in OPERATORS if "heads" not in name]  # those PyTorch refuses
TWICE += [(name, "reference") for name in SOLVERS]


@pytest.mark.parametrize(("name", "backend"), TWICE)
def test_second_gradients_are_refused(device, name, backend):
    skip_if_too_large(name, device)
    function, make = OPERATORS[name]
    inputs = [x.to(device).requires_grad_(x.is_floating_point()) for x in make(0)]
    results = function(*inputs, backend=backend)
    total = sum(x.square().sum() for x in ([results] if isinstance(results, torch.Tensor) else results))
    inputs = [x for x in inputs if x.requires_grad]
    summed = sum(gradient.sum() for gradient in torch.autograd.grad(total, inputs, create_graph=True))
    for differentiate in (partial(torch.autograd.grad, inputs=inputs, retain_graph=True), torch.Tensor.backward):
        with pytest.raises(RuntimeError, match="twice") as refused:
            differentiate(summed)
        assert name not in SOLVERS or "reference" not in str(refused.value)  # which refuses too


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in SHORT])
def test_under_activation_checkpointing(device, name, backend):
    """The forward runs again in the backward, which may read what it saved only once."""
    function, make = OPERATORS[name]
    inputs, function = [x.to(device) for x in make(0)], partial(function, backend=backend)
    torch.testing.assert_close(
        run(partial(checkpoint, function, use_reentrant=False), inputs), run(function, inputs), rtol=0, atol=0
    )


def zeros(*shape, dtype=F32):
    return torch.zeros(shape, dtype=dtype)


ROTARY, NORMED = Part(2, 4, Form.ROTARY), Part(1, 4, Form.RMS_NORM)
X, QKV = zeros(2, 3, 8), [zeros(1, 4, 2, 8)] * 4
DELTA = [zeros(2, 5, 2, 16)] * 3 + [zeros(2, 5, 2)] * 2
BLOCK, SCAN = (OPERATORS[name][1](0) for name in ("mamba_block", "selective_scan"))
CACHED = [zeros(2, 1, 4, 16)] * 2 + [zeros(2, 40, 2, 16)] * 2
ROWS = zeros(1, 130, dtype=torch.int64)


def without(arguments, position, wrong):
    return [*arguments[:position], wrong, *arguments[position + 1 :]]


MOMENTS, MOVED = for_moments("cpu", 5), for_parameters("cpu", 5)
TRITON = {"backend": "triton"}
WRONG = [
    (fused.rms_norm, (X[0], zeros(4), EPS), {}, r"weight has shape \(4,\)"),
    (fused.add_rms_norm, (X[0], zeros(3, 4), zeros(8), EPS), {}, r"y has shape \(3, 4\)"),
    (fused.swiglu, (zeros(2, 8), zeros(2, 4)), {}, r"up torch.float32 \(2, 4\)"),
    (fused.swiglu_mlp, (zeros(3, 8), zeros(30, 8), zeros(8, 16)), {}, r"gate_up has shape \(30, 8\): pass \[32, 8\]"),
    (fused.embedding, (ROWS[0], zeros(2, 3, 5)), {}, r"weight has shape \(2, 3, 5\)"),
    (fused.linear, (zeros(2, 8), zeros(4, 7)), {}, r"weight has shape \(4, 7\): pass \[M, 8\], to fit x \(2, 8\)"),
    (fused.linear, (zeros(2, 8), zeros(4, 8), zeros(1)), {}, r"bias has shape \(1,\): pass \[4\]"),
    (fused.linear, (zeros(2, 8), zeros(4, 8).bfloat16()), {}, "x is torch.float32 and weight torch.bfloat16"),
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
    (short_convolution, (zeros(2, 5, 3), zeros(2, 4), zeros(3)), {}, r"weight has shape \(2, 4\): pass \[3, taps\]"),
    (short_convolution, (zeros(2, 5, 3), zeros(3, 5)), TRITON, "at most 4 taps, not 5"),
    (gated_delta_rule, without(DELTA, 0, DELTA[0][0]), {}, "q has shape"),
    (gated_delta_rule, [x.double() for x in DELTA], TRITON, "dtype=torch.float64"),
    (kimi_delta_rule, without(DELTA, 3, zeros(2, 5, 2, 1)), {}, r"log_decay has shape \(2, 5, 2, 1\)"),
    (mesa, [*DELTA, zeros(16)], {}, "ridge has shape"),
    (mesa, [*DELTA, zeros(2, 16)], {"iterations": 0}, "iterations=0"),
    (softmax_attention, [X] * 3, {}, r"q has shape \(2, 3, 8\): pass \[B, T, H, D\]"),
    (softmax_attention, (QKV[0], zeros(1, 4, 1, 8), QKV[2]), {}, r"k has shape \(1, 4, 1, 8\)"),
    (solved_probe, (QKV[0], zeros(1, 4, 1, 8)), {"scale": 1.0, "ridge": 1.0}, r"k has shape \(1, 4, 1, 8\)"),
    (selective_scan, without(SCAN, 1, zeros(2, 5, 2)), {}, "^delta has shape"),
    (mamba_block, without(BLOCK, 0, zeros(2, 5, 5)), {}, r"xz has shape \(2, 5, 5\): pass \[batch, T, 6\]"),
    (mamba_block, without(BLOCK, 1, zeros(2, 4)), {}, r"conv_weight has shape \(2, 4\): pass \[3, taps\]"),
    (parallax_attention, without(QKV, 2, zeros(1, 4, 2, 8, dtype=torch.int32)), {}, "k.dtype=torch.int32"),
    (parallax_attention, without(QKV, 3, zeros(1, 4, 2, 8).to("meta")), {}, "v is on meta"),
    (parallax_attention, without(QKV, 1, zeros(1, 3, 2, 8)), {}, r"rho has shape \(1, 3, 2, 8\)"),
    (parallax_attention, [*[zeros(1, 4, 3, 8)] * 2, *QKV[2:]], {}, "q has 3 heads, not a multiple of the 2"),
    (parallax_attention, QKV, {"window": 0}, "window=0"),
    (parallax_decode, CACHED, {"lengths": torch.tensor([1, 2])}, "lengths is torch.int64"),
    (parallax_decode, CACHED, {"window": 0}, "window=0"),
    (parallax_decode, without(CACHED, 0, zeros(2, 9, 4, 16)), {}, r"\(2, 9, 4, 16\)"),
    (parallax_decode, without(CACHED, 2, zeros(2, 40, 3, 16)), {}, r"\(2, 40, 3, 16\)"),
    (fused.gates, (X, X[..., :3], zeros(2)), {}, r"decay_bias has shape \(2,\): pass \[8\]"),
    (fused.gates, (X, X[:, :2, :3], zeros(8)), TRITON, r"beta_logit has shape \(2, 2, 3\): pass \[2, 3, H\]"),
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
