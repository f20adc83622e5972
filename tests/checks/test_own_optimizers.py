"""Optimizers and schedules of a user's own: what a run refuses of them before it trains."""

from contextlib import nullcontext

import pytest
import torch
from command_line import TINY, records, run_py
from flawed_mixers import Flawed, population_of

from mixerlab.checks.optimizer import check_schedule, check_step
from mixerlab.training.optimizers import AdamW
from mixerlab.training.schedules import Constant


class OwnSchedule(Constant):
    def __init__(self, values):
        self.values = values

    def learning_rate(self, progress):
        return self.values(progress)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (lambda progress: 0.5, r"learning_rate\(progress\) gives 0.5, and must give a tensor like progress"),
        (lambda progress: (0.9996 - progress).sqrt(), "learning_rate is nan at progress 0.9997, and must be finite"),
        (lambda progress: progress.half_life(), "learning_rate: AttributeError: 'Tensor' object has no attribute"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_name(values, message):
    with pytest.raises(ValueError, match=f"schedule=mine: .*{message}"):
        check_schedule(OwnSchedule(values), "mine")


def optimizer_of(cls, replicas):
    return cls(population_of(Flawed, [0] * replicas), [0.001] * replicas, Constant(), 8, weight_decay=0.0)


class OwnStep(AdamW):
    lacks = ""

    @torch.no_grad()
    def step(self, closure=None):
        state = self.state[self.parameters]
        if self.lacks != "active":
            state["active"] *= self.parameters.grad.isfinite().all(1)
        state["step_number"] += self.lacks != "step_number"
        state["steps_taken"] += state["active"]
        self.parameters.grad.nan_to_num_()
        self.parameters.sub_(self.learning_rates()[:, None] * self.parameters.grad * state["active"][:, None])


@pytest.mark.parametrize("lacks", ["", "active", "step_number"])
def test_a_step_of_ones_own_counts_and_freezes(lacks, monkeypatch):
    """Without the number of the step, for one, the rate would never fall."""
    monkeypatch.setattr(OwnStep, "lacks", lacks)
    refused = pytest.raises(ValueError, match="its step must add 1 to `step_number`")
    with refused if lacks else nullcontext():
        check_step(optimizer_of(OwnStep, 1))


OWN = """
from mixerlab.training.optimizers import AdamW


class Own(AdamW):
    momentum = 0.9

    def directed(self):
        return self.layout.size

    def direction(self, momentum, gradient):
        {}
"""


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("return momentum / momentum.norm()", 1, "error: optimizer=own: its step mixes replicas"),
        ("return momentum[:, 1:]", 1, "error: optimizer=own: direction gives a tensor [2, "),
        ("momentum.sign()", 1, "error: optimizer=own: direction gives None for a momentum [2, "),
        (
            "return self.state[self.parameters].setdefault('own', 0 * momentum).add_(momentum)",
            1,
            "its step makes self.state[self.parameters]['own']: make it in __init__",
        ),
        ("return momentum.sign() * (gradient * momentum > 0)", 0, ""),
        ("return momentum.cuda_only()", 0, "optimizer=own fails on the CPU, and is not checked: AttributeError"),
    ],
)
def test_a_run_with_an_optimizer_of_ones_own(own, tmp_path, monkeypatch, body, code, message):
    name = f"own_direction_{code}_{len(body)}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(OWN.format(body))
    options = own("optimizer/own", f"name: own\n_target_: {name}.Own\nlr: 0.001\n")
    outcome = run_py(
        *options, "mixer=attn", "task=icr", "optimizer=own", *TINY, f"results_dir={tmp_path}", f"dry_run={not code}"
    )
    assert outcome.code == code and message in outcome.err
    assert not records(tmp_path)
