"""Muon and AdamW compared with torch's own, one parameter at a time, with given gradients."""

import math
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mixerlab.kernels.optimizer.newton_schulz import orthogonalise
from mixerlab.kernels.optimizer.newton_schulz.reference import newton_schulz
from mixerlab.mixers.base import as_matrix, split_rows
from mixerlab.training import optimizers
from mixerlab.training.layout import PAPER, Grouping
from mixerlab.training.optimizers import AdamW, Muon
from mixerlab.training.population import Population
from mixerlab.training.schedules import WSD, Constant, Cosine

STEPS = 6
FALLING = torch.tensor([1, 1, 1, 1, 2 / 3, 1 / 3])  # WSD over 6 steps with decay in the last half


class WithoutBfloat16(TorchFunctionMode):
    """Casts to bfloat16 only copy: torch's Muon makes one before it orthogonalises, whatever it is given."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.bfloat16 or (function is torch.Tensor.to and kwargs.get("dtype") is torch.bfloat16):
            return args[0].clone()
        return function(*args, **kwargs)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.tall = nn.Linear(12, 40, bias=False)
        self.wide = nn.Linear(40, 12, bias=False)
        self.embedding = nn.Embedding(7, 12)
        self.gain = nn.RMSNorm(12)


class Marked(Parts):
    """And a filter, and what is marked as matrices."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"mixer": nn.Conv1d(12, 12, 4, groups=12, bias=False)})])
        self.split, self.stack = nn.Linear(12, 20, bias=False), nn.Parameter(torch.randn(2, 5, 12))
        self.plain = nn.Parameter(torch.randn(20, 12))
        split_rows(self.split.weight, (12, 8))
        as_matrix(self.stack)
        as_matrix(self.plain)


def stepped(make, lr, gradients, schedule=None, build=Parts, grouping=PAPER):
    """The initial values of each parameter, `[R, ...]`, and its values after each step, `[STEPS, R, ...]`."""
    population = Population(build, range(len(lr)), grouping)
    optimizer = make(population, lr, schedule or Constant(), STEPS)

    def named():
        return {name: value.detach().clone() for name, value in population.parameters_by_name().items()}

    start, history = named(), []
    for gradient in gradients:
        columns = [gradient[slot.name].flatten(1) for slot in population.layout.slots]
        population.parameters_by_replica.grad = torch.cat(columns, dim=1)
        optimizer.step()
        history.append(named())
    return start, {name: torch.stack([values[name] for values in history]) for name in start}


def gradients_for(replicas, scales=None, build=Parts):
    generator = torch.Generator().manual_seed(0)
    shapes = {name: parameter.shape for name, parameter in build().named_parameters()}
    scales = torch.ones(STEPS, replicas) if scales is None else scales

    def drawn(shape, step):
        return torch.stack([torch.randn(shape, generator=generator) * scale for scale in scales[step]])

    return [{name: drawn(shape, step) for name, shape in shapes.items()} for step in range(STEPS)]


def torchs(make, start, gradients, name, replica, clip=math.inf):
    """One replica's parameter after each step of torch's optimizer, `[STEPS, ...]`; clipping is over all parameters."""
    every = {other: nn.Parameter(value[replica].clone()) for other, value in start.items()}
    optimizer = make([every[name]])
    history = []
    for gradient in gradients:
        for other, parameter in every.items():
            parameter.grad = gradient[other][replica].clone()
        nn.utils.clip_grad_norm_(every.values(), clip)
        optimizer.step()
        history.append(every[name].detach().clone())
    return torch.stack(history)


@pytest.mark.parametrize(("nesterov", "scale"), [(False, "original"), (True, "original"), (False, "match_rms_adamw")])
@pytest.mark.parametrize("name", ["tall.weight", "wide.weight"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_muon_is_torchs(dtype, name, nesterov, scale, monkeypatch):
    # torch always orthogonalises in bfloat16; without that cast the match is tight.
    exactly = WithoutBfloat16() if dtype == torch.float32 else nullcontext()
    lr, gradients = [0.02, 0.1], gradients_for(2)
    monkeypatch.setattr(optimizers, "orthogonalise", partial(orthogonalise, dtype=dtype))
    options = {"nesterov": nesterov, "update_scale": scale}
    start, ours = stepped(partial(Muon, weight_decay=0.3, max_grad_norm=math.inf, **options), lr, gradients)
    torchs_muon = partial(torch.optim.Muon, weight_decay=0.3, momentum=0.95, nesterov=nesterov, adjust_lr_fn=scale)
    for replica in range(2):
        with exactly:
            theirs = torchs(partial(torchs_muon, lr=lr[replica]), start, gradients, name, replica)
        moved = (theirs - start[name][replica]).norm()
        error = (ours[name][:, replica] - theirs).norm() / moved
        assert error < (1e-5 if dtype == torch.float32 else 2e-2)


MATRICES = {  # the rows and columns of each
    "tall.weight": [(40, 12)],
    "wide.weight": [(12, 40)],
    "blocks.0.mixer.weight": [(12, 4)],
    "split.weight": [(12, 12), (8, 12)],
    "stack": [(5, 12), (5, 12)],
    "plain": [(20, 12)],
}


@pytest.mark.parametrize(("scale", "power"), [("spectral", 0.5), ("none", 0)])
def test_the_update_of_a_matrix_is_scaled_by_its_shape(scale, power):
    """The first step moves it by lr times the scale times the polar factor of its gradient."""
    gradients, options = gradients_for(1, build=Marked)[:1], {"weight_decay": 0, "max_grad_norm": None}
    make = partial(Muon, update_scale=scale, filters="muon", **options)
    start, ours = stepped(make, [0.02], gradients, build=Marked, grouping=Grouping(filters="muon"))
    for name, shapes in MATRICES.items():
        parts = gradients[0][name].view(-1, shapes[0][1]).split([rows for rows, _ in shapes])
        moved = [
            0.02 * (rows / columns) ** power * newton_schulz(part[None], 5, torch.float32)[0]
            for part, (rows, columns) in zip(parts, shapes, strict=True)
        ]
        expected = start[name] - torch.cat(moved).view_as(start[name])
        torch.testing.assert_close(ours[name][0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "scale"), [("embedding.weight", 0.3), ("gain.weight", 0.015)])
def test_muon_moves_other_parameters_like_torchs_adam(name, scale):
    lr, gradients = [0.02, 0.1], gradients_for(2)
    start, ours = stepped(partial(Muon, max_grad_norm=math.inf), lr, gradients)
    for replica in range(2):
        adam = partial(torch.optim.Adam, lr=scale * lr[replica], betas=(0.8, 0.95), eps=1e-7)
        theirs = torchs(adam, start, gradients, name, replica)
        torch.testing.assert_close(ours[name][:, replica], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["tall.weight", "wide.weight", "embedding.weight", "gain.weight"])
def test_adamw_is_torchs_and_clips_each_replica(name):
    """The gradients of the first replica grow from step to step and are clipped; those of the second stay small."""
    scales = torch.stack((torch.logspace(0, 2, STEPS), torch.full((STEPS,), 1e-3)), dim=1)
    lr, gradients = [0.02, 0.1], gradients_for(2, scales)
    start, ours = stepped(partial(AdamW, weight_decay=0.3, max_grad_norm=1.0), lr, gradients)
    _, unclipped = stepped(partial(AdamW, weight_decay=0.3, max_grad_norm=None), lr, gradients)
    for replica in range(2):
        adamw = partial(torch.optim.AdamW, lr=lr[replica], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3)
        for found, clip in ((ours, 1.0), (unclipped, math.inf)):
            theirs = torchs(adamw, start, gradients, name, replica, clip)
            torch.testing.assert_close(found[name][:, replica], theirs, rtol=1e-5, atol=1e-6)
    assert (ours[name][:, 0] - unclipped[name][:, 0]).abs().max() > 1e-3


PROGRESS = [0.0, 0.05, 0.1, 0.5, 0.8, 0.9, 0.95]
COSINE = [0.5 * (1 + math.cos(math.pi * p)) for p in PROGRESS]


@pytest.mark.parametrize(
    ("schedule", "progress", "rate", "decay"),
    [
        (WSD(), PROGRESS, [1.0, 1, 1, 1, 1, 0.5, 0.25], [1.0] * 7),
        (WSD(warmup=0.1), PROGRESS, [0.0, 0.5, 1, 1, 1, 0.5, 0.25], [1.0] * 7),
        (WSD(gamma=2.0), PROGRESS, [1.0, 1, 1, 1, 1, 0.5, 0.25], [1.0, 1, 1, 1, 1, 0.25, 0.0625]),
        (Cosine(warmup=0.0), PROGRESS, COSINE, [1.0] * 7),
        (Cosine(warmup=0.1), [0.0, 0.05, 0.1, 0.55, 1.0], [0.0, 0.5, 1.0, 0.5, 0.0], [1.0] * 5),
        (Constant(), PROGRESS, [1.0] * 7, [1.0] * 7),
    ],
)
def test_multipliers_of_a_schedule(schedule, progress, rate, decay):
    progress = torch.tensor(progress)
    for found, expected in ((schedule.learning_rate(progress), rate), (schedule.weight_decay(progress), decay)):
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def no_gradients():
    return [{name: torch.zeros_like(g) for name, g in gradients_for(1)[0].items()}] * STEPS


def test_weight_decay_is_annealed_with_gamma():
    """With zero gradients a hidden matrix only shrinks, by lr * decay per step; both fall in the decay phase."""
    start, ours = stepped(Muon, [0.5], no_gradients(), WSD(decay=0.5, gamma=2.0))
    weight = torch.cat((start["tall.weight"][None], ours["tall.weight"]))
    shrinkage = 1 - (weight[1:] / weight[:-1]).mean(dim=(1, 2, 3))
    torch.testing.assert_close(shrinkage, 0.5 * 0.1 * FALLING**3, rtol=1e-2, atol=1e-5)
    for name in ("embedding.weight", "gain.weight"):
        assert torch.equal(ours[name][-1], start[name])  # Muon decays nothing but matrices


def test_all_parameters_may_decay_each_at_its_learning_rate():
    start, ours = stepped(partial(Muon, weight_decay=0.1, decayed="all"), [0.5], no_gradients()[:1])
    for name, scale in (("tall.weight", 1.0), ("embedding.weight", 0.3), ("gain.weight", 0.015)):
        torch.testing.assert_close(ours[name][-1], start[name] * (1 - 0.5 * 0.1 * scale), rtol=1e-6, atol=1e-8)


def test_sizes_must_add_up():
    with pytest.raises(ValueError, match=r"the sizes \[16, 8\] must add up to the 32 rows"):
        split_rows(torch.empty(32, 16), (16, 8))


class Rated(nn.Module):
    """Three gains: one as usual, one without decay as in mamba, one with a rate and without decay as in S4."""

    def __init__(self):
        super().__init__()
        self.usual, self.undecayed, self.rated = (nn.Parameter(torch.ones(12)) for _ in range(3))
        self.undecayed._no_weight_decay = True
        self.rated._optim = {"lr": 1e-3, "weight_decay": 0.0}


def test_rates_and_decay_of_public_code_are_honoured_for_each_replica():
    """The first step of Adam moves each element by its rate."""
    population = Population(Rated, (0, 0, 0))
    optimizer = AdamW(population, [0.1, 0.05, 0.01], Constant(), 10, weight_decay=0.5)
    population.keep([0, 2])
    optimizer.keep([0, 2])
    population.parameters_by_replica.grad = torch.ones_like(population.parameters_by_replica)
    optimizer.step()
    moved = {name: 1 - value for name, value in population.parameters_by_name().items()}
    for name, wanted in {"usual": (0.15, 0.015), "undecayed": (0.1, 0.01), "rated": (1e-3, 1e-3)}.items():
        expected = torch.tensor(wanted)[:, None].expand(-1, 12)
        torch.testing.assert_close(moved[name].detach(), expected, rtol=1e-3, atol=1e-6)


def muon(**options):
    arguments = {"lr": [1e-3], **options}
    return Muon(Population(Parts, [0]), schedule=Constant(), total_steps=STEPS, **arguments)


@pytest.mark.parametrize(
    ("make", "key", "value"),
    [
        *((muon, "lr", [value]) for value in (0.0, -1.0, math.nan, math.inf)),
        *((muon, "momentum", value) for value in (1.0, -0.1)),
        *((muon, "max_grad_norm", value) for value in (0, math.nan)),
        (muon, "weight_decay", -0.1),
        (muon, "betas", (0.9, 1.0)),
        (muon, "eps", 0.0),
        (muon, "ns_steps", 0),
        (muon, "table_lr_scale", -1.0),
        (muon, "decayed", "none"),
        (muon, "update_scale", "rms"),
        (WSD, "decay", 0.0),
        (WSD, "warmup", -0.1),
        (WSD, "gamma", math.nan),
        (Cosine, "warmup", 1.0),
    ],
)
def test_refuses_with_the_key_and_the_value(make, key, value):
    with pytest.raises(ValueError, match=rf"{key}=\W*{value[0] if isinstance(value, list | tuple) else value}"):
        make(**{key: value})
