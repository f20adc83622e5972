"""Muon and AdamW compared with torch's own, one parameter at a time, with given gradients."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import _muon
from torch.overrides import TorchFunctionMode

from mixerlab.kernels.optimizer.newton_schulz.reference import newton_schulz
from mixerlab.training.optimizers import AdamW, Muon
from mixerlab.training.population import Population
from mixerlab.training.schedules import WSD, Constant

STEPS = 6


class WithoutBfloat16(TorchFunctionMode):
    """Casts to bfloat16 only copy: torch's Muon makes one before it orthogonalises, whatever it is given."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.bfloat16 or (function is torch.Tensor.to and kwargs.get("dtype") is torch.bfloat16):
            return args[0].clone()
        return function(*args, **kwargs)


class Parts(nn.Module):
    """One parameter of each kind: a tall and a wide hidden matrix, a table, a gain."""

    def __init__(self):
        super().__init__()
        self.tall = nn.Linear(12, 40, bias=False)
        self.wide = nn.Linear(40, 12, bias=False)
        self.embedding = nn.Embedding(7, 12)
        self.gain = nn.RMSNorm(12)


KINDS = {"tall.weight": "matrix", "wide.weight": "matrix", "embedding.weight": "table", "gain.weight": "gain"}


def stepped(make, lr, gradients, schedule=None):
    """The initial values of each parameter, `[R, ...]`, and its values after each step, `[STEPS, R, ...]`."""
    population = Population(Parts, seeds=range(len(lr)))
    optimizer = make(population, lr, schedule or Constant(), STEPS)

    def named():
        values = population.parameters_by_replica.detach().clone()
        return {
            slot.name: values[:, slot.start : slot.stop].unflatten(1, slot.shape) for slot in population.layout.slots
        }

    start, history = named(), []
    for gradient in gradients:
        columns = [gradient[slot.name].flatten(1) for slot in population.layout.slots]
        population.parameters_by_replica.grad = torch.cat(columns, dim=1)
        optimizer.step()
        history.append(named())
    return start, {name: torch.stack([values[name] for values in history]) for name in start}


def gradients_for(replicas, scales=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: parameter.shape for name, parameter in Parts().named_parameters()}
    scales = torch.ones(STEPS, replicas) if scales is None else scales
    return [
        {
            name: torch.stack([torch.randn(shape, generator=generator) * scale for scale in scales[step]])
            for name, shape in shapes.items()
        }
        for step in range(STEPS)
    ]


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
def test_muon_is_torchs(dtype, name, nesterov, scale):
    # torch always orthogonalises in bfloat16; without that cast the match is tight.
    exactly = WithoutBfloat16() if dtype == torch.float32 else nullcontext()
    lr, gradients = [0.02, 0.1], gradients_for(2)
    start, ours = stepped(
        lambda *args: Muon(
            *args, nesterov=nesterov, update_scale=scale, ns_dtype=dtype, weight_decay=0.3, max_grad_norm=math.inf
        ),
        lr,
        gradients,
    )
    for replica in range(2):
        with exactly:
            theirs = torchs(
                lambda p, lr=lr[replica]: torch.optim.Muon(
                    p, lr=lr, weight_decay=0.3, momentum=0.95, nesterov=nesterov, adjust_lr_fn=scale
                ),
                start,
                gradients,
                name,
                replica,
            )
        moved = (theirs - start[name][replica]).norm()
        error = (ours[name][:, replica] - theirs).norm() / moved
        assert error < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize(("scale", "tall", "wide"), [("spectral", (40 / 12) ** 0.5, (12 / 40) ** 0.5), ("none", 1, 1)])
def test_the_update_is_scaled_by_the_matrixs_shape(scale, tall, wide):
    """The first step moves a matrix by lr times the scale times the polar factor of its gradient."""
    gradients = gradients_for(1)[:1]
    start, ours = stepped(
        lambda *args: Muon(*args, update_scale=scale, weight_decay=0, max_grad_norm=None), [0.02], gradients
    )
    for name, factor in (("tall.weight", tall), ("wide.weight", wide)):
        polar = newton_schulz(gradients[0][name], 5, torch.float32)
        torch.testing.assert_close(ours[name][0], start[name] - 0.02 * factor * polar, rtol=1e-5, atol=1e-6)


def test_the_patch_removes_the_cast_of_torchs_muon():
    """Without its cast, torch's Newton-Schulz equals ours up to float32 rounding; with it, up to bfloat16 rounding."""
    matrix = torch.randn(3, 12, 40)
    ours = newton_schulz(matrix, 5, torch.float32)
    settings = ((3.4445, -4.775, 2.0315), 5, 1e-7)
    rounded = torch.stack([_muon._zeropower_via_newtonschulz(m, *settings) for m in matrix])
    with WithoutBfloat16():
        exact = torch.stack([_muon._zeropower_via_newtonschulz(m, *settings) for m in matrix])
    assert (ours - exact).abs().max() < 1e-5 < (ours - rounded).abs().max()


def test_newton_schulz_flattens_the_singular_values():
    """For tall and wide matrices of any scale, the quintic brings the singular values to about 0.7 to 1.2."""
    for shape in ((2, 40, 12), (2, 12, 40)):
        values = torch.linalg.svdvals(newton_schulz(torch.randn(shape) * 1e3, 5, torch.float32))
        assert values.min() > 0.5 and values.max() < 1.3


@pytest.mark.parametrize(("name", "scale"), [("embedding.weight", 0.3), ("gain.weight", 0.015)])
def test_muon_moves_other_parameters_like_torchs_adam(name, scale):
    lr, gradients = [0.02, 0.1], gradients_for(2)
    start, ours = stepped(lambda *args: Muon(*args, max_grad_norm=math.inf), lr, gradients)
    for replica in range(2):
        theirs = torchs(
            lambda p, lr=lr[replica]: torch.optim.Adam(p, lr=scale * lr, betas=(0.8, 0.95), eps=1e-7),
            start,
            gradients,
            name,
            replica,
        )
        torch.testing.assert_close(ours[name][:, replica], theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_adamw_is_torchs_and_clips_each_replica(name):
    """The gradients of the first replica grow from step to step and are clipped; those of the second stay small."""
    scales = torch.stack((torch.logspace(0, 2, STEPS), torch.full((STEPS,), 1e-3)), dim=1)
    lr, gradients = [0.02, 0.1], gradients_for(2, scales)
    start, ours = stepped(lambda *args: AdamW(*args, weight_decay=0.3, max_grad_norm=1.0), lr, gradients)

    def torchs_adamw(replica, clip):
        return torchs(
            lambda p: torch.optim.AdamW(p, lr=lr[replica], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.3),
            start,
            gradients,
            name,
            replica,
            clip,
        )

    for replica in range(2):
        torch.testing.assert_close(ours[name][:, replica], torchs_adamw(replica, 1.0), rtol=1e-5, atol=1e-6)
    unclipped = torchs_adamw(0, math.inf)
    assert (ours[name][:, 0] - unclipped).abs().max() > 1e-3


def test_a_replica_with_a_bad_gradient_keeps_its_parameters():
    gradients = gradients_for(3)
    clean = stepped(Muon, [0.02] * 3, gradients)[1]
    gradients[2]["gain.weight"][1, 0] = math.nan
    ours = stepped(Muon, [0.02] * 3, gradients)[1]
    for name, values in ours.items():
        frozen = values[1, 1].expand(STEPS - 1, *values.shape[2:])
        assert torch.equal(values[1:, 1], frozen)
        assert torch.equal(values[:, (0, 2)], clean[name][:, (0, 2)])
        assert not torch.equal(clean[name][1, 1], clean[name][2, 1])


def test_the_learning_rate_falls_with_the_schedule():
    """WSD over 6 steps with decay in the last half: 1, 1, 1, 1, 2/3, 1/3 of the peak."""
    gradients = [gradients_for(1)[0]] * STEPS  # one gradient: Adam's direction is then its sign
    start, ours = stepped(AdamW_without_decay, [0.03], gradients, WSD(decay=0.5))
    gain = torch.cat((start["gain.weight"][None], ours["gain.weight"]))
    sizes = gain.diff(dim=0).abs().mean(dim=(1, 2)) / 0.03
    torch.testing.assert_close(sizes, torch.tensor([1, 1, 1, 1, 2 / 3, 1 / 3]), rtol=1e-4, atol=0)


def AdamW_without_decay(*args):
    return AdamW(*args, weight_decay=0.0)


def test_weight_decay_is_annealed_with_gamma():
    """With zero gradients a hidden matrix only shrinks, by lr * decay per step; both fall in the decay phase."""
    gradients = [{name: torch.zeros_like(g) for name, g in gradients_for(1)[0].items()}] * STEPS
    start, ours = stepped(Muon, [0.5], gradients, WSD(decay=0.5, gamma=2.0))
    weight = torch.cat((start["tall.weight"][None], ours["tall.weight"]))
    shrinkage = 1 - (weight[1:] / weight[:-1]).mean(dim=(1, 2, 3))
    falling = torch.tensor([1, 1, 1, 1, 2 / 3, 1 / 3])
    torch.testing.assert_close(shrinkage, 0.5 * 0.1 * falling * falling**2, rtol=1e-2, atol=1e-5)
    for name in ("embedding.weight", "gain.weight"):
        assert torch.equal(ours[name][-1], start[name])  # Muon decays nothing but matrices


def test_all_parameters_may_decay_each_at_its_learning_rate():
    gradients = [{name: torch.zeros_like(g) for name, g in gradients_for(1)[0].items()}]
    start, ours = stepped(lambda *args: Muon(*args, weight_decay=0.1, decayed="all"), [0.5], gradients)
    for name, scale in (("tall.weight", 1.0), ("embedding.weight", 0.3), ("gain.weight", 0.015)):
        torch.testing.assert_close(ours[name][-1], start[name] * (1 - 0.5 * 0.1 * scale), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lr": [0.0]}, "optimizer.lr=0.0"),
        ({"lr": [1e-3, -1.0]}, "optimizer.lr=-1.0"),
        ({"lr": [math.nan]}, "optimizer.lr=nan"),
        ({"lr": [math.inf]}, "optimizer.lr=inf"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay=-0.1"),
        ({"betas": (0.9, 1.0)}, r"optimizer.betas=\[0.9, 1.0\]"),
        ({"max_grad_norm": 0}, "optimizer.max_grad_norm=0"),
        ({"max_grad_norm": math.nan}, "optimizer.max_grad_norm=nan"),
    ],
)
@pytest.mark.parametrize("optimizer", [Muon, AdamW])
def test_refuses_with_the_key_and_the_value(optimizer, options, named):
    arguments = {"lr": [1e-3], **options}
    population = Population(Parts, seeds=range(len(arguments["lr"])))
    with pytest.raises(ValueError, match=named):
        optimizer(population, schedule=Constant(), total_steps=STEPS, **arguments)


@pytest.mark.parametrize(
    "options",
    [{"momentum": 1.0}, {"momentum": -0.1}, {"ns_steps": 0}, {"decayed": "none"}, {"update_scale": "rms"}],
)
def test_muon_refuses_with_the_key_and_the_value(options):
    ((key, value),) = options.items()
    with pytest.raises(ValueError, match=f"optimizer.{key}={value!r}"):
        Muon(Population(Parts, seeds=[0]), [1e-3], Constant(), STEPS, **options)
