"""Delta rules, mesa, centring and solved probes against float64 loops of their formulas, and against fla's loops."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cases import check_close, draw, replayed, run, weights_of
from formulas import delta_rule

from mixerlab.kernels.centring import centred
from mixerlab.kernels.common.chunked import to_chunks
from mixerlab.kernels.common.triton_chunked import tile_options
from mixerlab.kernels.gated_delta_rule import gated_delta_rule
from mixerlab.kernels.kimi_delta_rule import kimi_delta_rule
from mixerlab.kernels.local_linear import solved_probe
from mixerlab.kernels.mesa import mesa
from mixerlab.kernels.mesa.reference import build_systems, conjugate_gradients

F32, BF16 = torch.float32, torch.bfloat16
check = partial(check_close, least=0.1, entries=3)


def random_inputs(seed, batch=2, length=17, heads=2, dim=16, dtype=torch.float64, device="cpu"):
    """Unit queries and keys, every fourth key repeated (a task's blank token), slow and fast decays."""
    rng = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, length, heads, dim, generator=rng, dtype=torch.float64) for _ in range(3))
    k[:, ::4] = k[:, :1].clone()
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    log_decay = -(torch.rand(batch, length, heads, generator=rng, dtype=torch.float64) ** 3) * 2
    beta = torch.rand(batch, length, heads, generator=rng, dtype=torch.float64)
    gates = torch.promote_types(dtype, torch.float32)
    return [x.to(device, dtype) for x in (q, k, v)] + [x.to(device, gates) for x in (log_decay, beta)]


def blank_inputs(seed, **sizes):
    """70 % of the positions hold one key, long steps, slow decay: what a task with blanks looks like."""
    q, k, v, log_decay, beta = random_inputs(seed, **sizes)
    blank = torch.rand(k.shape[:3], generator=torch.Generator().manual_seed(seed))[..., None] < 0.7
    k = torch.where(blank.to(k.device), k[:, :1], k)
    return [q, k, v, 0.005 * log_decay, 0.5 + 0.5 * beta]


def exact_delta_rule(q, k, v, log_decay, beta, scale=None):
    """Of a decay for each head or channel, and each value head with its key head."""
    log_decay = log_decay if log_decay.ndim == 4 else log_decay[..., None].expand_as(k)
    q, k, decay, beta = (x.repeat_interleave(v.shape[2] // k.shape[2], 2) for x in (q, k, log_decay.exp(), beta))
    return (scale or k.shape[-1] ** -0.5) * delta_rule(q, k, v, decay, beta)


def exact_mesa(q, k, v, log_decay, beta, ridge):
    key_state, value_state, rows = 0.0, 0.0, []
    for t in range(k.shape[1]):
        decay, weighted = log_decay[:, t, :, None, None].exp(), (beta[:, t, :, None] * k[:, t])[..., None, :]
        key_state = decay * key_state + k[:, t, :, :, None] * weighted
        value_state = decay * value_state + v[:, t, :, :, None] * weighted
        solution = torch.linalg.solve(key_state + torch.diag_embed(ridge), q[:, t])
        rows.append((value_state @ solution[..., None])[..., 0])
    return torch.stack(rows, dim=1)


def exact_centring(q, k, v, log_decay, beta):
    """Welford's terms, the means from all weights at each position."""
    decayed = log_decay.cumsum(1)
    rows, mean_k, mean_v = [], torch.zeros_like(k[:, 0]), torch.zeros_like(v[:, 0])
    for t in range(q.shape[1]):
        weights = beta[:, : t + 1] * (decayed[:, t : t + 1] - decayed[:, : t + 1]).exp()
        share = beta[:, t] / weights.sum(1)
        centred_k, centred_v = k[:, t] - mean_k, v[:, t] - mean_v
        mean_k, mean_v = (
            torch.einsum("bsh,bshd->bhd", weights, x[:, : t + 1]) / weights.sum(1)[..., None] for x in (k, v)
        )
        rows.append((q[:, t] - mean_k, centred_k, centred_v, beta[:, t] * (1 - share), mean_v))
    return [torch.stack(x, dim=1) for x in zip(*rows, strict=True)]


def with_more_values(inputs, per_key):
    q, k, v, *gates = inputs
    return [q, k, torch.cat([v.roll(i, dims=1) for i in range(per_key)], dim=2), *gates]


def kimi_inputs(seed, strongest=3.0, make=random_inputs, **sizes):
    q, k, v, _, beta = make(seed, **sizes)
    log_decay = -strongest * torch.rand(k.shape, generator=torch.Generator().manual_seed(seed), dtype=beta.dtype) ** 3
    return [q, k, v, log_decay.to(q.device), 2 * beta]


def mesa_inputs(seed, make=random_inputs, heads=2, dim=16, **sizes):
    inputs = make(seed, heads=heads, dim=dim, **sizes)
    rng = torch.Generator().manual_seed(seed + 1)
    ridge = 0.25 + torch.rand(heads, dim, generator=rng, dtype=torch.float64)
    return [*inputs, ridge.to(inputs[-1])]


def solved(q, k, relative=True, backend="triton"):
    options = {"scale": 0.3, "ridge": 0.5, "relative": relative, "iterations": 16 if relative else 48}
    return solved_probe(q, k, **options, backend=backend)


def exact_probe(q, k, relative=True):
    a, b = q.transpose(1, 2), k.transpose(1, 2)
    weights = (0.3 * a @ b.mT).exp().tril()
    total = weights.sum(-1, keepdim=True)
    p, ridge = weights / total, 0.5 / (torch.ones_like(total) if relative else total)
    mean = p @ b
    moment = torch.einsum("...ts,...sd,...se->...tde", p, b, b) - mean[..., :, None] * mean[..., None, :]
    moment = moment + ridge[..., None] * torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    return torch.linalg.solve(moment, mean - a).transpose(1, 2)


def probe_inputs(seed, length, dim=16, dtype=F32, device="cpu"):
    return draw(*[(1, length, 2, dim)] * 2, device=device, dtype=dtype, seed=seed)


LENGTHS = [(1, 64), (63, 64), (64, 64), (65, 64), (70, 16), (23, 8), (23, 6)]


@pytest.mark.parametrize(("length", "chunk_size"), LENGTHS)
@pytest.mark.parametrize(
    ("operator", "exact", "make", "tolerance"),
    [
        (partial(gated_delta_rule, scale=0.7), partial(exact_delta_rule, scale=0.7), random_inputs, 1e-11),
        (kimi_delta_rule, exact_delta_rule, partial(kimi_inputs, dim=4), 1e-12),
        (mesa, exact_mesa, mesa_inputs, 1e-9),  # 30 steps at head size 16 solve the systems
    ],
    ids=["gated", "kimi", "mesa"],
)
def test_reference_equals_the_formula(operator, exact, make, tolerance, length, chunk_size):
    reference = partial(operator, chunk_size=chunk_size, backend="reference")
    check(reference, exact, make(length, length=length), tolerance)


KERNELS = {  # each with its formula and its inputs
    "gated": (
        partial(gated_delta_rule, scale=0.7, chunk_size=16, backend="triton"),
        partial(exact_delta_rule, scale=0.7),
        random_inputs,
    ),
    "kimi": (partial(kimi_delta_rule, chunk_size=16, backend="triton"), exact_delta_rule, kimi_inputs),
    "mesa": (partial(mesa, iterations=20, chunk_size=16, backend="triton"), exact_mesa, mesa_inputs),
    "centring": (partial(centred, backend="triton"), exact_centring, random_inputs),
}


# Heads of 8 are padded to the 16 columns of a tile, and cut again.
@pytest.mark.parametrize(
    ("name", "length", "dim"),
    [
        *(("gated", 1, 16), ("gated", 16, 8), ("kimi", 1, 16), ("kimi", 39, 8), ("mesa", 1, 16), ("mesa", 16, 8)),
        *(("mesa", 39, 16), ("centring", 1, 16), ("centring", 70, 8)),
    ],
)
def test_kernel_equals_the_formula(device, name, length, dim):
    kernel, exact, make = KERNELS[name]
    check(kernel, exact, make(length, length=length, dim=dim, dtype=F32, device=device), 1e-5)


@pytest.mark.parametrize(("length", "per_key", "dim", "part"), [(39, 2, 16, 64), (18, 3, 16, 64), (39, 2, 32, 16)])
def test_more_values_than_keys_also_in_parts(device, monkeypatch, length, per_key, dim, part):
    monkeypatch.setattr("mixerlab.kernels.gated_delta_rule.operator.PART", part)
    kernel, exact, _ = KERNELS["gated"]
    inputs = random_inputs(length, length=length, dim=dim, dtype=F32, device=device)
    check(kernel, exact, with_more_values(inputs, per_key), 1e-5)


@pytest.mark.parametrize("length", [1, 70])
def test_centring_by_pytorch_equals_the_formula(length):
    check(partial(centred, backend="reference"), exact_centring, random_inputs(length, length=length, dim=8), 1e-12)


def test_weights_of_0_in_front_leave_gradients_finite():
    inputs = [x.requires_grad_() for x in random_inputs(0, length=6, dim=8, dtype=F32)]
    with torch.no_grad():
        inputs[-1][:, :2] = 0
    results = centred(*inputs, backend="reference")
    assert all(x.isfinite().all() for x in torch.autograd.grad(sum(x.sum() for x in results), inputs))


FLA = {  # with the order of its arguments
    "gated_delta_rule.naive.naive_recurrent_gated_delta_rule": (gated_delta_rule, random_inputs, (0, 1, 2, 4, 3), 1e-4),
    "kda.naive.naive_recurrent_kda": (kimi_delta_rule, kimi_inputs, (0, 1, 2, 3, 4), 1e-4),
    "mesa_net.naive.naive_mesa_net_exact": (mesa, mesa_inputs, (0, 1, 2, 3, 5, 4), 1e-3),
}


@pytest.mark.parametrize("place", FLA)
def test_reference_equals_fla(place):
    (operator, make, order, tolerance), (module, _, name) = FLA[place], place.rpartition(".")
    theirs, inputs = getattr(pytest.importorskip(f"fla.ops.{module}"), name), make(5, length=70, dtype=F32)
    expected = run(lambda *x: theirs(*(x[i] for i in order))[0], inputs)
    torch.testing.assert_close(run(operator, inputs), expected, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_negative_eigenvalues_with_repeated_keys_and_no_decay(backend, device):
    """Steps of nearly 2 reflect the state at one key again and again, and forget neither it nor its rounding."""
    q, k, v, log_decay, _ = random_inputs(3, length=70, dtype=F32, device=device)
    inputs = [q, k[:, :1].expand_as(k), v, 0 * log_decay, torch.full_like(log_decay, 1.98)]
    # The kernel inverts each chunk's system, and its error grows with the chunk: on a GPU 3.1e-5 for log_decay.
    tolerance = 5e-5 if backend == "triton" else 3e-5
    check(partial(gated_delta_rule, chunk_size=32, backend=backend), exact_delta_rule, inputs, tolerance)


def test_more_heads_than_a_launch_holds_are_refused():
    q = torch.empty(2**15, 1, 2, 16, device="meta")
    with pytest.raises(ValueError, match="32768 sequences of 2 heads: the kernel takes at most 65535"):
        tile_options(q, 64)


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_any_decay_of_channels_in_float32(device, backend):
    """Factors that by themselves would overflow: exp(90) is infinite in float32.

    Sums of log decays reach 600 and are rounded by 3e-5, and so are the decays between positions.
    """
    inputs = kimi_inputs(1, strongest=60.0, length=40, dtype=F32, device=device)
    check(partial(kimi_delta_rule, chunk_size=16, backend=backend), exact_delta_rule, inputs, tolerance=5e-5)


@pytest.mark.parametrize("gamma", [0.5, 0.99, 1.0])
@pytest.mark.parametrize("distinct_keys", [8, 512])
def test_thirty_steps_of_mesa_reach_the_stated_residual(gamma, distinct_keys):
    """`|q - (H + ridge) x| / |q|` in float32 at head size 64, T = 512, with the ridge at its lower bound."""
    rng = torch.Generator().manual_seed(distinct_keys)
    table = F.normalize(torch.randn(distinct_keys, 64, generator=rng), dim=-1)
    # Skewed frequencies, as tokens have them, spread the eigenvalues of H.
    tokens = (torch.rand(1, 512, 1, generator=rng) ** 3 * distinct_keys).long()
    q = F.normalize(torch.randn(1, 512, 1, 64, generator=rng), dim=-1)
    log_decay = torch.full((1, 512, 1), gamma).log()
    k, q, log_decay = (to_chunks(x, 64) for x in (table[tokens], q, log_decay))
    chunks, *_ = build_systems(k, k, log_decay, torch.ones_like(log_decay), torch.full((1, 64), 0.25))
    residual = (q - chunks.apply(conjugate_gradients(chunks, q, 30))).norm(dim=-1)
    assert residual.max() < 1e-4


def test_the_reference_of_mesa_compiles_without_a_break():
    inputs, function = mesa_inputs(2, length=9), partial(mesa, iterations=2, chunk_size=4)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled, inputs), run(function, inputs))


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_gradients_of_mesa_whose_squares_vanish(device, backend):
    """A loss at late positions reaches early ones through small decays: the gradient there is small, but not zero."""
    inputs, function = (
        mesa_inputs(3, length=20, dtype=F32, device=device),
        partial(mesa, chunk_size=16, backend=backend),
    )
    (weights,) = weights_of([inputs[0]])
    whole, small = (run(function, inputs, [scale * weights])[1:] for scale in (1.0, 2.0**-90))
    torch.testing.assert_close([2.0**90 * gradient for gradient in small], whole, rtol=1e-4, atol=1e-5)


def test_later_positions_change_nothing_of_mesa(device):
    """The positions of a chunk iterate until all have converged, but none goes on for the sake of a later one."""
    inputs = mesa_inputs(9, length=16, dtype=F32, device=device)
    inputs[-1] *= 0.01  # a small ridge: later positions take more steps
    changed = [x.clone() for x in inputs]
    changed[0][:, 10:] = 0  # positions that need no step
    outputs = [mesa(*x, chunk_size=16, backend="triton")[:, :10] for x in (inputs, changed)]
    torch.testing.assert_close(*outputs, rtol=0, atol=0)


def test_a_decay_that_leaves_nothing_to_centre(device):
    inputs = random_inputs(1, length=70, dtype=F32, device=device)
    inputs[3][:, [3, 66]] = -200.0
    check(KERNELS["centring"][0], exact_centring, inputs, 1e-5)
    inputs[4][:, :3] = 0.0  # no weight at all
    assert all(x.isfinite().all() for x in run(KERNELS["centring"][0], inputs))


@pytest.mark.parametrize(
    ("backend", "relative", "dtype", "tolerance"),
    [
        ("reference", True, torch.float64, 1e-9),
        ("reference", False, torch.float64, 1e-9),
        ("triton", True, F32, 1e-5),
    ],
)
@pytest.mark.parametrize(("length", "dim"), [(1, 16), (40, 16), (40, 12)])
def test_a_probe_equals_dense_solves(device, length, dim, backend, relative, dtype, tolerance, monkeypatch):
    """Over several chunks of queries; the gradients are implicit derivatives."""
    monkeypatch.setattr("mixerlab.kernels.local_linear.operator.CHUNK_SIZE", 36)
    inputs = probe_inputs(length, length, dim, dtype, device)
    given = {"relative": relative}
    check(partial(solved, **given, backend=backend), partial(exact_probe, **given), inputs, tolerance)


each_make = pytest.mark.parametrize("make", [random_inputs, blank_inputs])


@pytest.mark.gpu
@pytest.mark.parametrize("chunk_size", [32, 64])
@pytest.mark.parametrize("dim", [16, 32, 64, 128])
@pytest.mark.parametrize("length", [1, 17, 63, 64, 65, 127, 500])
@each_make
@pytest.mark.parametrize("per_key", [1, 2])
def test_gated_delta_rule_in_bfloat16(make, length, dim, chunk_size, per_key):
    inputs = with_more_values(make(length, length=length, dim=dim, dtype=BF16, device="cuda"), per_key)
    kernel = partial(gated_delta_rule, chunk_size=chunk_size, backend="triton")
    check(kernel, partial(gated_delta_rule, backend="reference"), inputs, 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk_size", [32, 64])
@pytest.mark.parametrize("dim", [16, 32, 64, 128])
@pytest.mark.parametrize("length", [1, 17, 63, 64, 65, 127, 500])
@each_make
def test_mesa_in_bfloat16(make, length, dim, chunk_size):
    inputs = mesa_inputs(length, make=make, length=length, dim=dim, dtype=BF16, device="cuda")
    kernel = partial(mesa, chunk_size=chunk_size, backend="triton")
    check(kernel, partial(mesa, iterations=2 * dim, backend="reference"), inputs, 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk_size", [32, 64])
@pytest.mark.parametrize("dim", [16, 64])
@pytest.mark.parametrize("length", [1, 63, 65, 500])
@each_make
def test_kimi_delta_rule_in_bfloat16(make, length, dim, chunk_size):
    inputs = kimi_inputs(length, make=make, strongest=1.0, length=length, dim=dim, dtype=BF16, device="cuda")
    inputs[-1] *= 0.5
    kernel = partial(kimi_delta_rule, chunk_size=chunk_size, backend="triton")
    check(kernel, partial(kimi_delta_rule, backend="reference"), inputs, 1.5e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [16, 32, 64])
@pytest.mark.parametrize("length", [1, 63, 65, 500])
@each_make
def test_centring_in_bfloat16(make, length, dim):
    inputs = make(length, length=length, dim=dim, dtype=BF16, device="cuda")
    check(KERNELS["centring"][0], partial(centred, backend="reference"), inputs, 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [4, 12, 16, 32, 64])
@pytest.mark.parametrize("length", [1, 63, 128, 300])
def test_a_probe_on_a_gpu(length, dim):
    check(solved, exact_probe, probe_inputs(length, length, dim, device="cuda"), 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("function", "make"),
    [
        (gated_delta_rule, lambda *a, **sizes: with_more_values(random_inputs(*a, **sizes), 2)),
        (kimi_delta_rule, kimi_inputs),
        (mesa, mesa_inputs),
        (KERNELS["centring"][0], random_inputs),
        (solved, probe_inputs),
    ],
)
def test_in_a_compiled_function_and_a_cuda_graph(function, make):
    inputs = make(1, length=70, dim=32, dtype=BF16, device="cuda")
    expected = run(function, inputs)
    torch.testing.assert_close(run(torch.compile(function, fullgraph=True), inputs), expected, rtol=0, atol=0)
    weights = weights_of(expected[: -len(inputs)])
    captured = replayed(lambda *x: run(function, x, weights), [torch.zeros_like(x) for x in inputs], inputs)
    torch.testing.assert_close(captured, expected, rtol=0, atol=0)
