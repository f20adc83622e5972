"""What a run checks before it trains: a call of the model leaves nothing behind that changes the next one."""

import copy
import itertools

import pytest
import torch
from command_line import TINY, run_py
from flawed_mixers import LENGTH, VOCAB, WIDTH, Drops, Flawed, population_of
from torch import nn

from mixerlab.checks.contract import ContractBroken, check_causality
from mixerlab.checks.repeatability import KEEPS_STATE, keeps_state, repeats, written_buffers
from mixerlab.mixers.base import SequenceMixer
from mixerlab.training.execution import choose_execution


class Remembers(SequenceMixer):
    """Adds the mean of its last input to a causal output."""

    def __init__(self, d_model=WIDTH):
        super().__init__()
        self.linear, self.seen = nn.Linear(d_model, d_model), []

    def forward(self, x):
        y = self.linear(x)
        self.seen = [*self.seen[-1:], x.detach()]
        return y + self.seen[0].mean()


def test_state_is_no_sight_of_the_future():
    assert keeps_state(population_of(Remembers), VOCAB, LENGTH)
    for flaw in ("", "mean", "by FFT"):
        assert not keeps_state(population_of(lambda: Flawed(flaw)), VOCAB, LENGTH)  # noqa: B023
    population = population_of(Drops)
    population.compute_in_a_loop()
    assert not keeps_state(population, VOCAB, LENGTH) and population.model.training


class CountsSteps(SequenceMixer):
    def __init__(self, d_model=WIDTH):
        super().__init__()
        self.linear, self.steps = nn.Linear(d_model, d_model), 0

    def forward(self, x):
        self.steps += self.training
        return self.linear(x) / (1 + 0.01 * self.steps)


def test_state_in_training_mode_only():
    """The check of causality compares two calls in that mode too, and would take it for a leak."""
    assert keeps_state(population_of(CountsSteps), VOCAB, LENGTH)
    with pytest.raises(ContractBroken, match=f"it {KEEPS_STATE}"):
        check_causality(CountsSteps, WIDTH)


@pytest.mark.parametrize(("share", "same"), [(0, True), (1e-6, True), (1e-2, False)])
def test_rounding_is_no_state(share, same):
    calls = itertools.count()
    assert repeats(lambda x: x + share * next(calls), torch.ones(3), torch.zeros(3), of_largest=1e-4) == same


def test_rounding_of_a_small_element_is_measured_by_it():
    calls, x = itertools.count(), torch.tensor([1.0, 1e-3])

    def drifting(x):
        return x + torch.tensor([0.0, 1e-6]) * next(calls)

    assert repeats(drifting, x, x, of_largest=1e-5) and not repeats(drifting, x, x, of_each=1e-5)


def test_a_run_is_refused_for_its_state(tmp_path):
    """model.may_see_future=true would train it."""
    mine = "mixer=attn", "mixer.name=mine", f"mixer._target_={__name__}.RemembersToo", "task=icr"
    outcome = run_py(*mine, *TINY, f"results_dir={tmp_path}")
    assert outcome.code == 1 and outcome.err.splitlines()[-1] == f"error: mixer=mine {KEEPS_STATE}"


class RemembersToo(Remembers):
    def __init__(self, d_model, num_heads, rope_base, qk_norm, bias):
        super().__init__(d_model)

    def state_size(self, seq_len):
        return 1


class Writes(SequenceMixer):
    """Writes the mean of its output into a buffer, in evaluation mode too, and adds what was there."""

    def __init__(self, d_model=WIDTH, num_heads=1, rope_base=1, qk_norm=False, bias=False, how="assign"):
        super().__init__()
        self.linear, self.how, self.gate = nn.Linear(d_model, d_model), how, nn.Parameter(torch.zeros(d_model))
        self.register_buffer("h", torch.zeros(d_model))

    def forward(self, x):
        y, h = self.linear(x), self.h.clone()
        if self.how == "in place":
            self.h.copy_(y.detach().mean((0, 1)))
        elif self.how == "unread" or self.training or self.how == "assign":
            self.h = y.detach().mean((0, 1))
        return y if self.how == "unread" else y + self.gate * h

    def state_size(self, seq_len):
        return 1


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    ("how", "is_state"), [("assign", True), ("in place", True), ("in training", False), ("unread", False)]
)
def test_a_buffer_that_is_written_in_evaluation_mode_is_state(how, is_state, bf16):
    population = population_of(lambda: Writes(how=how))
    choose_execution(population, "auto", torch.randint(VOCAB, (2, 2, LENGTH)), slice(None), bf16=bf16)
    assert population.buffers_by_replica
    before, random = copy.deepcopy(population.get_extra_state()), torch.random.get_rng_state()
    written = written_buffers(population, VOCAB, LENGTH, bf16=bf16)
    assert written == ([f"blocks.{block}.mixer.h" for block in range(2)] if is_state else [])
    torch.testing.assert_close(population.get_extra_state(), before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), random) and population.model.training
    assert not any(buffer.any() for buffer in population.model.buffers())


@pytest.mark.parametrize("task", ["icr", "cmp"])
def test_a_run_is_refused_for_a_buffer_that_it_writes_in_evaluation_mode(task, tmp_path):
    mine = "mixer=attn", "mixer.name=mine", f"mixer._target_={__name__}.Writes", f"task={task}"
    outcome = run_py(*mine, *TINY, f"results_dir={tmp_path}")
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("error: mixer=mine writes h in evaluation mode, so that it gives")
