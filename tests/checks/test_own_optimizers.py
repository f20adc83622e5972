"""Optimizers and schedules of a user's own: what a run refuses of them before it trains."""

import sys

import pytest
from command_line import TINY, records, run_py

OWN_OPTIMIZER = """
from mixerlab.training.optimizers import AdamW


class Plain(AdamW):
    def __init__(self, population, lr, schedule, total_steps):
        super().__init__(population, lr, schedule, total_steps, weight_decay=0.0)
"""


def test_an_optimizer_without_weight_decay(own, tmp_path):
    """Its runs have a record, beside others of a sweep."""
    options = own("optimizer/plain", "name: plain\n_target_: plain_adam.Plain\nlr: 0.001\n")
    (tmp_path / "plain_adam.py").write_text(OWN_OPTIMIZER)
    given = (*options, "mixer=attn", "task=icr", *TINY, f"results_dir={tmp_path / 'results'}")
    outcome = run_py("-m", *given, "optimizer=plain,adamw")
    assert outcome.code == 0, outcome.err
    decays = {
        run["rows"][0]["optimizer"]: run["rows"][0]["weight_decay"] for run in records(tmp_path / "results").values()
    }
    assert decays["plain"] == 0.0 < decays["adamw"]


SCHEDULE = """
import torch


class Own:
    def learning_rate(self, progress):
        return {}

    def weight_decay(self, progress):
        return torch.ones_like(progress)
"""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0.5", "learning_rate(progress) gives 0.5, and must give a tensor like progress"),
        ("progress[:3]", "learning_rate(progress) gives shape [3], and must give a tensor like progress"),
        ("(0.5 - progress).sqrt()", "learning_rate is nan at progress 0.5001, and must be finite and at least 0"),
        ("(0.9996 - progress).sqrt()", "learning_rate is nan at progress 0.9997, and must be finite and at least 0"),
        ("0.25 - progress", "learning_rate is -0.0001 at progress 0.2501, and must be finite and at least 0"),
        ("progress.half_life()", "learning_rate: AttributeError: 'Tensor' object has no attribute 'half_life'"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_by_name(own, tmp_path, monkeypatch, given, message):
    options = own("schedule/mine", "name: mine\n_target_: own_schedule.Own\n")
    (tmp_path / "own_schedule.py").write_text(SCHEDULE.format(given))
    monkeypatch.delitem(sys.modules, "own_schedule", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = run_py(*options, "mixer=attn", "task=icr", "schedule=mine", *TINY, f"results_dir={tmp_path}")
    assert outcome.code == 1 and f"error: schedule=mine: {message}" in outcome.err
    assert not records(tmp_path)


OWN_STEP = """
import torch

from mixerlab.training.optimizers import AdamW


class Own(AdamW):
    @torch.no_grad()
    def step(self, closure=None):
        state = self.state[self.parameters]
        {}
        self.parameters.sub_(self.learning_rates()[:, None] * self.parameters.grad * active[:, None])
"""
COUNTS = """state["active"] *= self.parameters.grad.isfinite().all(1)
        active = state["active"]
        state["step_number"] += 1
        state["steps_taken"] += active
        self.parameters.grad.nan_to_num_()"""


@pytest.mark.parametrize(
    "lacks", ["", 'state["step_number"] += 1', 'state["steps_taken"] += active', "self.parameters.grad.nan_to_num_()"]
)
def test_a_step_of_ones_own_counts_and_freezes(own, tmp_path, lacks):
    """What it lacks is told before it trains: without the number of the step, the rate would never fall."""
    name = f"own_step_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN_STEP.format(COUNTS.replace(lacks, "pass") if lacks else COUNTS))
    options = own("optimizer/own", f"name: own\n_target_: {name}.Own\nlr: 0.001\n")
    outcome = run_py(*options, "mixer=attn", "task=icr", "optimizer=own", *TINY, f"results_dir={tmp_path / 'results'}")
    if not lacks:
        assert outcome.code == 0, outcome.err
        (record,) = records(tmp_path / "results").values()
        assert record["rows"][0]["steps"] > 0 and record["rows"][0]["test_loss"] < 5
        return
    assert outcome.code == 1 and outcome.err.startswith("error: optimizer=own: its step must add 1 to `step_number`")
    assert not records(tmp_path / "results")


OWN_DIRECTION = """
from mixerlab.training.optimizers import AdamW


class Own(AdamW):
    momentum = 0.9
    previous = 0.0

    def directed(self):
        return self.layout.size

    def direction(self, momentum):
        {}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return momentum / momentum.norm(dim=1, keepdim=True)", None),
        ("return momentum / momentum.norm()", "its step mixes replicas: one moves otherwise beside another"),
        (
            "self.previous = 0.5 * self.previous + momentum; return self.previous",
            "its step depends on what it keeps outside of self.state[self.parameters], which a checkpoint",
        ),
        ("return momentum[:, 1:]", "direction gives a tensor [2, "),
        ("self.last = momentum.norm(dim=1); return momentum", None),
        (
            "state = self.state[self.parameters]; return state.setdefault('own', 0 * momentum).add_(momentum)",
            "its step makes self.state[self.parameters]['own']: make it in __init__",
        ),
        ("return self.state[self.parameters]['first_moment'].sign()", None),
        ("return momentum / 0", "from finite gradients its step gives parameters that are not finite"),
    ],
)
def test_a_direction_of_ones_own_is_of_each_replica_by_itself(own, tmp_path, body, message):
    name = f"own_direction_{tmp_path.name}".replace("[", "_").replace("]", "_")
    (tmp_path / f"{name}.py").write_text(OWN_DIRECTION.format(body))
    options = own("optimizer/own", f"name: own\n_target_: {name}.Own\nlr: 0.001\n")
    outcome = run_py(*options, "mixer=attn", "task=icr", "optimizer=own", *TINY, f"results_dir={tmp_path / 'results'}")
    if message is None:
        assert outcome.code == 0, outcome.err
    else:
        assert outcome.code == 1 and outcome.err.startswith(f"error: optimizer=own: {message}")


def test_an_optimizer_that_needs_a_gpu_is_not_checked_and_says_so(own, tmp_path):
    """A sweep may be composed on a host without one."""
    name = f"on_gpu_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN_DIRECTION.format("assert momentum.is_cuda; return momentum"))
    options = own("optimizer/own", f"name: own\n_target_: {name}.Own\nlr: 0.001\n")
    outcome = run_py(*options, "mixer=attn", "task=icr", "optimizer=own", *TINY, "dry_run=true")
    assert outcome.code == 0
    assert (
        "optimizer=own is not checked, as it fails on the CPU: AssertionError: assert momentum.is_cuda" in outcome.err
    )
