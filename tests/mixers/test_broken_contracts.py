"""What the contract of a sequence mixer notices, of mixers that break it in one way each, and what it lets pass."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from mixerlab.checks.contract import (
    WIDTH,
    ContractBroken,
    check_config,
    check_declarations,
    check_draws,
    check_everything,
    check_forward,
    check_lengths,
    check_population,
    check_same_again,
)
from mixerlab.mixers.base import SequenceMixer


class Flawed(SequenceMixer):
    """A mixer that breaks the contract in one way."""

    def __init__(self, d_model, flaw):
        super().__init__()
        self.flaw = flaw
        self.proj = torch.nn.Linear(d_model, d_model)
        if flaw == "unused":
            self.spare = torch.nn.Parameter(torch.zeros(3))
        if flaw == "grows a buffer":
            self.register_buffer("mask", torch.empty(0, 0), persistent=False)
        if flaw == "writes":
            self.register_buffer("h", torch.zeros(d_model))
        if flaw == "frozen":
            self.requires_grad_(False)
        if flaw == "stray":
            self.table = torch.ones(d_model)

    def forward(self, x):
        y = self.proj(x)
        if self.flaw == "ahead":
            y = y + x.mean(dim=1, keepdim=True)
        if self.flaw == "ahead in training" and self.training:
            y = y + x.roll(-1, dims=1)
        if self.flaw == "over the batch":
            y = y.cumsum(1) + x.mean(dim=0, keepdim=True).cumsum(1)
        if self.flaw == "writes":
            y, self.h = y + self.h, y.detach().mean((0, 1))
        if self.flaw == "tuple":
            return y, None
        if self.flaw == "nothing":
            return None
        if self.flaw == "shape":
            y = y[:, 1:]
        if self.flaw == "overwrites":
            x *= 2
        if self.flaw == "recomputes":
            y = checkpoint(lambda y: self.proj(y).sigmoid(), y, use_reentrant=False)
        if self.flaw == "makes a layer":
            self.late = torch.nn.Linear(x.shape[2], x.shape[2])
            y = self.late(y)
        if self.flaw == "cut off":
            y = self.proj(x.detach())
        if self.flaw == "NaN":
            return y * torch.nan
        if self.flaw == "dropout":
            return torch.nn.functional.dropout(y, 0.1)
        if self.flaw == "grows a buffer":
            self.mask = torch.ones(x.shape[1], x.shape[1], device=x.device).tril()
        if self.flaw == "infinite":
            y = y + (y - y.detach()).abs().sqrt()
        if self.flaw == "ahead in small numbers":
            y = 1e-7 * (y + x.mean(dim=1, keepdim=True))
        if self.flaw == "by FFT":  # none: a causal convolution that is right up to rounding, of large numbers
            length = y.shape[1]
            kernel = torch.fft.rfft(0.9 ** torch.arange(length), 2 * length)[:, None]
            y = 1e3 * torch.fft.irfft(torch.fft.rfft(y, 2 * length, dim=1) * kernel, 2 * length, dim=1)[:, :length]
        return y

    def state_size(self, seq_len):
        return 1


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("unused", "'spare' gets no gradient: forward does not use it, or"),
        ("frozen", r"^'proj\.\w+' has requires_grad=False: what does not train is a buffer$"),
        ("cut off", "^'x' gets no gradient: forward does not use it, or cuts it off with detach"),
        ("stray", "^table is no parameter or buffer"),
        ("ahead", "sees position"),
        ("ahead in small numbers", "sees position"),
        ("shape", "shape is"),
        ("infinite", "not finite"),
    ],
)
def test_the_contract_notices(flaw, message):
    with pytest.raises(AssertionError, match=message):
        check_forward(Flawed(WIDTH, flaw))


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("ahead in training", "^it sees the future: the logits at position .* in training mode only"),
        ("over the batch", "^rows of a batch influence each other: "),
        ("writes", "^it writes h in evaluation mode, so that it gives different outputs"),
        ("tuple", r"^Flawed gives a tuple: it must give a tensor \[B, T, d_model\]$"),
        ("nothing", "^Flawed gives a NoneType: it must give a tensor"),
        ("shape", "^the output's shape is"),
        ("overwrites", r"^it overwrites its input: write x = 2 \* x"),
        ("recomputes", "^backward reads parameters from the module"),
        ("makes a layer", "^forward makes late.bias, late.weight, which a run does not train"),
        ("NaN", "^the output is not finite"),
        ("dropout", "^forward draws random numbers in evaluation mode"),
    ],
)
def test_the_whole_contract_notices(flaw, message):
    config = {"name": "flawed", "_target_": f"{__name__}.Flawed", "flaw": flaw}
    with pytest.raises(ContractBroken, match=message):
        check_everything(config, "flawed", lambda: Flawed(WIDTH, flaw))


def test_a_buffer_keeps_its_shape():
    config = {"name": "flawed", "_target_": f"{__name__}.Flawed", "flaw": "grows a buffer"}
    with pytest.raises(
        ValueError, match=r"the buffer .*mask of shape \[0, 0\] by one of \[.*: a buffer keeps its shape"
    ):
        check_everything(config, "flawed", lambda: Flawed(WIDTH, "grows a buffer"))


class Short(SequenceMixer):
    """Has a longest sequence, says so in `state_size`, and takes settings that its yaml need not have."""

    def __init__(self, d_model: int, longest: int = 64, **options):
        super().__init__()
        self.place, self.out = torch.nn.Parameter(torch.ones(longest, 1)), torch.nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(x * self.place[: x.shape[1]])

    def state_size(self, seq_len):
        if seq_len > len(self.place):
            raise ValueError(f"at most {len(self.place)} tokens")
        return 1


@pytest.mark.parametrize("longest", [64, 100, 19])
def test_a_longest_sequence_is_no_breach(longest):
    config = {"name": "short", "_target_": f"{__name__}.Short", "longest": longest}
    mixer = Short(WIDTH, longest)
    check_config(config, "short")
    check_lengths(mixer)
    check_declarations(mixer)


def test_only_a_value_error_says_that_a_sequence_is_too_long(monkeypatch):
    monkeypatch.setattr(Short, "state_size", lambda self, seq_len: self.sizes[seq_len])
    with pytest.raises(AttributeError, match="sizes"):
        check_lengths(Short(WIDTH))


class WholeLength(torch.nn.Module):
    def forward(self, x):
        return x / x.shape[1]

    def state_size(self, seq_len):
        return 1


def test_an_output_that_depends_on_the_length():
    with pytest.raises(ContractBroken, match=r"^the outputs of the first 1 of 70 positions change when .*: off by"):
        check_lengths(WholeLength())


class DrawsOnce(SequenceMixer):
    """A table that the first call draws: another one once the weights are loaded."""

    def __init__(self, d_model=WIDTH):
        super().__init__()
        self.linear, self.table = nn.Linear(d_model, d_model), None

    def forward(self, x):
        if self.table is None or self.table.shape[0] < x.shape[1]:
            self.table = torch.randn(x.shape[1], x.shape[2])
        return self.linear(x) + self.table[: x.shape[1]]


def test_what_the_first_call_draws():
    check_same_again(DrawsOnce())
    with pytest.raises(ContractBroken, match="forward draws random numbers in evaluation mode"):
        check_draws(DrawsOnce)


class DrawnByNumPy(SequenceMixer):
    def __init__(self, draw, d_model=WIDTH):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(draw(d_model), dtype=torch.float32))

    def forward(self, x):
        return self.scale * x


def test_initial_values_must_come_from_the_seed():
    check_draws(lambda: DrawnByNumPy(np.random.randn))
    generator = np.random.default_rng()
    with pytest.raises(ContractBroken, match="parameter scale starts otherwise each time"):
        check_draws(lambda: DrawnByNumPy(generator.random))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"after": "two"}, "mixer.after='two' must be a whole number"),
        ({"after": 2, "late": 1}, "unknown key mixer.late=1; Remembers takes: after"),
        ({}, "mixer.after is missing, which Remembers takes"),
    ],
)
def test_the_yaml_fits_the_constructor(given, message):
    config = {"name": "remembers", "_target_": f"{__name__}.Remembers", **given}
    with pytest.raises(ValueError, match=message):
        check_config(config, "remembers")


class Remembers(Flawed):
    """A mixer whose output depends on how often it was called."""

    def __init__(self, d_model, after: int):
        super().__init__(d_model, "")
        self.after, self.seen = after, []

    def forward(self, x):
        self.seen.append(x)
        return super().forward(x) if len(self.seen) < self.after else self.seen[0].new_zeros(1, 2, WIDTH)


def test_a_mixer_that_remembers_its_last_call():
    """It is no leak: the check must not lead to model.may_see_future."""
    config = {"name": "remembers", "_target_": f"{__name__}.Remembers", "after": 2}
    with pytest.raises(ContractBroken, match="different outputs for the same input: it keeps state between calls"):
        check_everything(config, "remembers", lambda: Remembers(WIDTH, after=2))
    check_same_again(Remembers(WIDTH, after=4))


class WrongInBfloat16(SequenceMixer):
    """Linear attention with a decay, right in float32. Under autocast it has `flaw` in its tensor `where`."""

    def __init__(self, d_model, where=None, flaw=None):
        super().__init__()
        self.q, self.k, self.v, self.a, self.o = (torch.nn.Linear(d_model, d_model, bias=False) for _ in range(5))
        self.where, self.flaw = where, flaw

    def flawed(self, name, x):
        if name != self.where or not torch.is_autocast_enabled("cpu"):
            return x
        match self.flaw:
            case "no gradient":
                return x.detach()
            case "a gradient that is a fifth too large":
                return 1.2 * x - 0.2 * x.detach()
            case "an infinite gradient in some sequences":
                root = torch.where(x[:, :1, :1] > 0.5, x - x.detach(), 1).sqrt()
                return x + root - root.detach()

    def forward(self, x):
        total = F.logsigmoid(self.flawed("a", self.a(x)).float() + 3).cumsum(1)
        q, k, v = self.flawed("q", self.q(x)), self.k(x), self.flawed("v", self.v(x))
        scores = ((q * total.exp()).float() @ (k * (-total).exp()).float().mT).tril()
        return self.o(scores @ v.float())

    def state_size(self, seq_len):
        return WIDTH**2


@pytest.mark.parametrize(
    ("where", "flaw", "message"),
    [
        ("q", "no gradient", "gradient of mixer.q.weight under bf16 autocast is 1.0e.00 off"),
        ("a", "no gradient", "gradient of mixer.a.weight under bf16 autocast is 1.0e.00 off"),
        ("v", "a gradient that is a fifth too large", "gradient of mixer.v.weight under bf16 autocast is 2.0e-01 off"),
        ("v", "an infinite gradient in some sequences", r"gradient is not finite \(bf16 autocast: True\)"),
    ],
)
def test_a_wrong_gradient_in_bfloat16(where, flaw, message):
    for seed in range(10):
        torch.manual_seed(seed)
        with pytest.raises(ContractBroken, match=message):
            check_population(lambda: WrongInBfloat16(WIDTH, where, flaw))


def test_the_same_mixer_with_a_right_gradient():
    for seed in range(10):
        torch.manual_seed(seed)
        check_population(lambda: WrongInBfloat16(WIDTH))


def test_a_gradient_that_is_zero_but_for_rounding():
    """Under a softmax a bias of the keys changes nothing, so its gradient has no size to measure an error by."""

    class WithKeyBias(SequenceMixer):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x):
            return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), is_causal=True)

    torch.manual_seed(0)
    check_population(WithKeyBias)


def test_rounding_is_no_look_ahead():
    torch.manual_seed(0)
    check_forward(Flawed(WIDTH, "by FFT"))


class Convolved(SequenceMixer):
    """Under autocast, vmap refuses its bias, which stays float32; a loop takes it."""

    def __init__(self, d_model):
        super().__init__()
        self.convolution = torch.nn.Conv1d(d_model, d_model, 3, groups=d_model)

    def forward(self, x):
        return self.convolution(F.pad(x.mT, (2, 0))).mT

    def state_size(self, seq_len):
        return 2 * self.convolution.in_channels


def test_a_mixer_that_vmap_refuses_in_bfloat16_only_keeps_the_contract():
    torch.manual_seed(0)
    assert "one after another" in check_population(lambda: Convolved(WIDTH)).why
