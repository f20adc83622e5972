"""Mixers that break the contract in one way each, and what `mixerlab check` and a run say of it; some keep it."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, weight_norm
from torch.utils.checkpoint import checkpoint

from mixerlab.checks.construction import check_construction
from mixerlab.checks.outputs import OutputCheck
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.models.stream import ALL
from mixerlab.training.execution import choose_execution
from mixerlab.training.population import Population

VOCAB, WIDTH, LENGTH, BATCH = 8, 16, 50, 128


@dataclass
class Flaw:
    """What a mixer gives for its input `x` and `y = linear(x)`, and the words by which it is refused, if it is.

    `check_only`: a run does not refuse it.
    """

    forward: Callable
    message: str | None = None
    prepare: Callable = lambda mixer: None
    check_only: bool = False


class Flawed(SequenceMixer):
    def __init__(self, flaw: str = "none", d_model: int = WIDTH):
        super().__init__()
        self.linear = nn.Linear(d_model, d_model, bias=False)
        self.flaw, self.calls, self.seen = flaw, 0, []
        FLAWS[flaw].prepare(self)

    def forward(self, x):
        return FLAWS[self.flaw].forward(self, x, self.linear(x))

    def state_size(self, seq_len):
        return 1


def past(y):
    """The mean of the past, which is causal."""
    return y.cumsum(1) / torch.arange(1, y.shape[1] + 1, device=y.device)[:, None]


def by_fft(mixer, x, y):
    """A causal convolution that is right up to rounding."""
    length = y.shape[1]
    kernel = torch.fft.rfft(0.9 ** torch.arange(length, device=x.device), 2 * length)[:, None]
    return torch.fft.irfft(torch.fft.rfft(y.float(), 2 * length, dim=1) * kernel, 2 * length, dim=1)[:, :length].to(y)


def within_chunks(mixer, x, y):
    """As of a kernel that lacks the mask within a chunk."""
    return past(y) + torch.cat([part.mean(1, keepdim=True).expand_as(part) for part in y.split(16, dim=1)], dim=1)


def across_edges(chunk, offset=0):
    """A sum of the past, and at the last position of each chunk the next token."""

    def forward(mixer, x, y):
        at = torch.arange(x.shape[1])
        is_last = ((at - offset) % chunk == chunk - 1) & (at < x.shape[1] - 1)
        return y.cumsum(1) + is_last[:, None] * y.roll(-1, dims=1)

    return forward


def remembers(mixer, x, y):
    mixer.seen = [*mixer.seen[-1:], x.detach()]
    return y + mixer.seen[0].mean()


def with_buffer(mixer):
    mixer.gate = nn.Parameter(torch.zeros(mixer.linear.in_features))
    mixer.register_buffer("h", torch.ones(mixer.linear.in_features))


def writes(mixer, x, y):
    h, mixer.h = mixer.h, y.detach().mean((0, 1))
    return y + mixer.gate * h


def writes_in_training(mixer, x, y):
    return writes(mixer, x, y) if mixer.training else y + mixer.gate * mixer.h


def overwrites(mixer, x, y):
    x *= 2
    return y


def draws_once(mixer, x, y):
    if not hasattr(mixer, "drawn"):
        mixer.drawn = torch.randn(x.shape[2])
    return y * mixer.drawn


def with_alias(mixer):
    mixer.shift = nn.Parameter(torch.ones(()))
    mixer.aliases = [mixer.shift]


def recomputes(mixer, x, y):
    """As `torch.utils.checkpoint` does in backward, where a module has no replica's parameters."""
    return checkpoint(lambda y: torch.sigmoid(y + mixer.shift).cumsum(1), y, use_reentrant=False)


def makes_a_parameter(mixer, x, y):
    if not hasattr(mixer, "late"):
        mixer.late = nn.Parameter(torch.ones(x.shape[2]))
    return mixer.late * y


def set_(name, make):
    return lambda mixer: setattr(mixer, name, make(mixer.linear.in_features))


def zeros(size):
    return nn.Parameter(torch.zeros(size))


class OwnLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.table = torch.randn(size)


def in_a_list_again(mixer):
    mixer.layers = nn.ModuleList([nn.SiLU()])
    mixer.again = [*mixer.layers, mixer.linear.weight]
    mixer.again.append(mixer.again)


def hooked(size):
    with warnings.catch_warnings(action="ignore"):  # it is deprecated, and published code has it
        return weight_norm(nn.Linear(size, size))


FUTURE, OTHER_ROWS, STATE = "it sees the future", "rows of a batch influence each other", "it keeps state between calls"
WRITES = "it writes h in evaluation mode, so that it gives different outputs"
DRAWS = "forward draws random numbers in evaluation mode"
LATE = "backward reads parameters from the module"
CHECK_ONLY = {"check_only": True}
FLAWS = {
    # none
    "none": Flaw(lambda m, x, y: past(y)),
    "by FFT": Flaw(by_fft),
    "rows in training": Flaw(lambda m, x, y: y - y.mean(0, keepdim=True) if m.training else y),
    "writes in training": Flaw(writes_in_training, None, with_buffer),
    "dropout in training": Flaw(lambda m, x, y: F.dropout(past(y), 0.2, m.training)),
    "frozen": Flaw(lambda m, x, y: y, None, lambda mixer: mixer.requires_grad_(False)),
    "unused": Flaw(lambda m, x, y: y, None, set_("spare", zeros)),
    "random buffer": Flaw(lambda m, x, y: y * m.h, None, set_("h", lambda d: nn.Buffer(torch.randn(d)))),
    "constant index": Flaw(lambda m, x, y: y[..., m.order], None, set_("order", lambda d: torch.arange(d).flip(0))),
    "made by a hook": Flaw(lambda m, x, y: m.normed(y), None, set_("normed", hooked)),
    "parametrized": Flaw(
        lambda m, x, y: m.normed(y), None, set_("normed", lambda d: parametrizations.weight_norm(nn.Linear(d, d)))
    ),
    "activations in a list": Flaw(lambda m, x, y: m.acts[0](y), None, set_("acts", lambda d: [nn.SiLU(), nn.GELU()])),
    "layers in a list again": Flaw(lambda m, x, y: y, None, in_a_list_again),
    "weights of an LSTM": Flaw(lambda m, x, y: y, None, set_("rnn", lambda d: nn.LSTM(d, d, num_layers=2))),
    # later tokens
    "mean": Flaw(lambda m, x, y: past(y) + y.mean(1, keepdim=True), FUTURE),
    "within chunks": Flaw(within_chunks, FUTURE),
    "norm over time": Flaw(
        lambda m, x, y: past(y) - m.training * past(y).mean(1, keepdim=True), f"{FUTURE}.*in training mode only"
    ),
    "norm over time and rows": Flaw(
        lambda m, x, y: past(y) - m.training * past(y).mean((0, 1)), f"{FUTURE}.*in training mode only"
    ),
    "the length": Flaw(lambda m, x, y: y / x.shape[1], "positions change when the others are removed", **CHECK_ONLY),
    # other rows
    "over a large batch": Flaw(lambda m, x, y: y - (len(x) > 64) * y.mean(0, keepdim=True), OTHER_ROWS),
    "pairs of rows": Flaw(
        lambda m, x, y: past(y) + (torch.arange(len(y)) % 2).view(-1, 1, 1) * y.roll(1, 0), OTHER_ROWS
    ),
    "over the batch": Flaw(lambda m, x, y: past(y) + y.mean(0, keepdim=True).cumsum(1), OTHER_ROWS),
    "on from the row before": Flaw(lambda m, x, y: past(y.flatten(0, 1)[None]).view_as(y), OTHER_ROWS),
    # earlier calls
    "remembers": Flaw(remembers, STATE),
    "writes": Flaw(writes, WRITES, with_buffer),
    "overwrites": Flaw(overwrites, "modified by an inplace operation"),
    "dropout": Flaw(lambda m, x, y: F.dropout(y, 0.1), DRAWS),
    "draws once": Flaw(draws_once, DRAWS),
    # parameters and buffers
    "reads late": Flaw(recomputes, LATE, set_("shift", lambda d: nn.Parameter(torch.full((), 0.3)))),
    "reads a list": Flaw(
        lambda m, x, y: y * m.aliases[0] + 0 * m.shift, "forward reads a parameter from a list", with_alias
    ),
    "makes a parameter": Flaw(makes_a_parameter, "forward makes .*late"),
    "stray layer": Flaw(
        lambda m, x, y: m.outs[0](y), r"outs\[0\].weight is no parameter", set_("outs", lambda d: [nn.Linear(d, d)])
    ),
    "stray tensor in a dict": Flaw(
        lambda m, x, y: y, r"tables\['decay'\] is no parameter", set_("tables", lambda d: {"decay": torch.randn(d)})
    ),
    "stray parameter": Flaw(lambda m, x, y: y, r"gates\[0\] is no parameter", set_("gates", lambda d: [zeros(d)])),
    "random tensor": Flaw(lambda m, x, y: y, "table is no parameter", set_("table", torch.randn)),
    "random tensor in a layer": Flaw(lambda m, x, y: y, "inner.table is no parameter", set_("inner", OwnLayer)),
    # what it gives
    "tuple": Flaw(lambda m, x, y: (y, None), "Flawed gives a tuple"),
    "nothing": Flaw(lambda m, x, y: None, "Flawed gives a NoneType"),
    "float64": Flaw(lambda m, x, y: y.double(), "Flawed gives torch.float64"),
    "cut off": Flaw(lambda m, x, y: y.detach(), "'x' gets no gradient", **CHECK_ONLY),
    "NaN": Flaw(lambda m, x, y: y * torch.nan, "the outputs are not finite", **CHECK_ONLY),
}


def population_of(make, seeds=(0, 1), vocabulary=VOCAB, width=WIDTH):
    return Population(lambda: LanguageModel(vocabulary, width, 2, make), seeds)


def as_a_run(make, *, bf16=False, lengths=(LENGTH,), may_see_future=False, seeds=(0, 1)) -> OutputCheck:
    """All that a run asks of a mixer before it trains."""
    check_construction(make)
    population = population_of(make, seeds)
    tokens = torch.randint(VOCAB, (len(seeds), 2, lengths[0]))
    choose_execution(population, "auto", tokens, ALL, bf16=bf16)
    check = OutputCheck(VOCAB, lengths, is_causal=True, may_see_future=may_see_future, key=object())
    check(population, bf16, BATCH)
    return check
