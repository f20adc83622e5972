"""What every sequence mixer must do, as checks that a test applies to one of them."""

import inspect

import torch
from hydra.utils import get_class
from replicas import check_replicas

from kernels.fused import Embedded
from mixers.base import SequenceMixer
from training.backbone import LanguageModel
from training.population import Population

VOCAB, WIDTH, LENGTH = 8, 32, 19


def check_config(config, name):
    """One name for file, config and table; every key of the constructor stands in the yaml, so it can be set."""
    mixer_class = get_class(config["_target_"])
    assert issubclass(mixer_class, SequenceMixer)
    assert config["name"] == name
    assert set(config) - {"name", "_target_"} == set(inspect.signature(mixer_class).parameters) - {"d_model"}


def check_forward(mixer, dtype=torch.float32):
    """Shape, dtype, causality, where its tensors are, and finite gradients to the input and every parameter."""
    mixer = mixer.to(dtype)
    for module in mixer.modules():
        stray = [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]
        assert not stray, f"{stray} must be parameters or buffers"
    x = torch.randn(2, LENGTH, WIDTH, dtype=dtype, requires_grad=True)
    y = mixer(x)
    assert y.shape == x.shape, f"the shape is {tuple(y.shape)}"
    assert y.dtype == dtype and y.isfinite().all()

    (y * torch.randn_like(y)).sum().backward()
    for label, tensor in (("x", x), *mixer.named_parameters()):
        assert tensor.grad is not None, f"{label} is not used"
        assert tensor.grad.isfinite().all(), f"the gradient of {label} is not finite"
        assert tensor.grad.any(), f"the gradient of {label} is zero: it is not used"

    for t in (1, LENGTH // 2, LENGTH - 1):
        changed = x.detach().clone()
        changed[:, t] += 1
        moved = (mixer(changed) - y).abs().amax(dim=(0, 2)) > 1e-6
        assert not moved[:t].any(), f"position {moved.nonzero()[0].item()} sees position {t}"
        assert moved[t], f"position {t} does not see itself"


def check_embedded(mixer):
    """A mixer that takes an `Embedded` gives for it, and its table and weights, what it gives for the rows of it."""
    if not mixer.takes_embedded:
        return
    tokens, table = torch.randint(5, (2, LENGTH)), torch.randn(5, WIDTH, requires_grad=True)
    late, at_once = mixer(Embedded(tokens, table)), mixer(table[tokens])
    torch.testing.assert_close(late, at_once, rtol=1e-4, atol=1e-5)
    weight, wanted = torch.randn_like(late), [table, *mixer.parameters()]
    gradients = (torch.autograd.grad((y * weight).sum(), wanted) for y in (late, at_once))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def check_lengths(mixer):
    """Any length from 1 up; a prefix of the input gives the same prefix of the output."""
    x = torch.randn(1, 70, WIDTH)
    whole = mixer(x)
    for length in (1, 2, 5, 64):
        torch.testing.assert_close(mixer(x[:, :length]), whole[:, :length], rtol=1e-4, atol=1e-5)


def check_declarations(mixer):
    sizes = [mixer.state_size(length) for length in (1, 64, 128)]
    assert all(type(size) is int and size > 0 for size in sizes) and sizes == sorted(sizes)
    backend = mixer.resolved_backend(torch.device("cpu"), torch.float32)
    assert backend in ("torch", "reference")


def check_population(make):
    """Trained side by side, two seeds compute what each computes alone, and in bfloat16 nearly what in float32."""

    def results(seeds, tokens, bf16):
        population = Population(lambda: LanguageModel(VOCAB, WIDTH, 1, make), seeds)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = population(tokens)
        loss = (logits.float() * weight).sum()
        return logits.float(), torch.autograd.grad(loss, population.parameters_by_replica)[0]

    tokens, weight = torch.randint(VOCAB, (2, 3, LENGTH)), torch.randn(3, LENGTH, VOCAB)
    together = {bf16: results((0, 1), tokens, bf16) for bf16 in (False, True)}
    for replica in range(2):
        for bf16 in (False, True):
            alone = results((replica,), tokens[replica : replica + 1], bf16)
            for what, both, one in zip(("output", "gradient"), together[bf16], alone, strict=True):
                off = _distance(both[replica], one[0])
                assert off < 1e-4, f"the {what} of a replica is {off:.1e} off beside another (bf16: {bf16})"
        for what, lowered, exact, most in zip(
            ("output", "gradient"), together[True], together[False], (0.05, 0.15), strict=True
        ):
            off = _distance(exact[replica], lowered[replica])
            assert off < most, f"the {what} under bf16 autocast is {off:.1e} off: keep what needs range in float32"


def _distance(x, y):
    return ((x - y).norm() / x.norm()).item()


def check_everything(config, name, make_mixer):
    """The whole contract of the mixer that `make_mixer()` builds at width 32 from `config`."""

    def make():
        mixer = make_mixer()
        for parameter in mixer.parameters():
            if not parameter.any():  # what starts at zero would hide what it feeds
                torch.nn.init.normal_(parameter, std=0.1)
        return mixer

    torch.manual_seed(0)
    check_config(config, name)
    check_forward(make())
    check_embedded(make())
    check_lengths(make())
    check_declarations(make())
    check_replicas(make, length=LENGTH, d_model=WIDTH)
    check_population(make)
