"""The lists of runs that are left for a GPU: each cell and seed once, those that tell mixers apart first."""

import re
from collections import Counter

import pytest

from mixerlab.results import plan


def seeds_of(run):
    return [int(seed) for seed in re.search(r"seed=\[?([\d,]+)", run.overrides)[1].split(",")]


def test_the_table_has_each_cell_with_three_seeds():
    runs = list(plan.table("default"))
    counted = Counter((run.mixer, run.task, run.setting, seed) for run in runs for seed in seeds_of(run))
    assert len(counted) == 330 * 3 and set(counted.values()) == {1}
    stages = [run.stage for run in runs]
    assert list(dict.fromkeys(stages)) == sorted(set(stages), key=stages.index)  # one after the other
    first = {(run.task, run.setting) for run in runs if run.stage == "cells that tell"}
    assert ("fcr", "num_train_examples-3200") in first and ("icr", "baseline") not in first
    assert all(plan.lengths(run.task)[run.setting] < plan.LONG or len(seeds_of(run)) == 1 for run in runs)


def test_the_challenge_has_every_reading():
    counted = Counter((run.mixer, run.task, run.setting) for run in plan.challenge("2x64"))
    assert len(counted) == 5 * (len(plan.CHALLENGE) + len(plan.OTHER_READINGS)) * 3
    assert set(counted.values()) == {2}  # a run for each seed


def test_recipes():
    assert plan.RECIPES["plain"]["attn"] == ["model.linear_std=0.02"]
    assert plan.RECIPES["plain"]["mamba"] == ["model.linear_std=0.02"]
    assert plan.RECIPES["4x32"]["mamba"] == plan.RECIPES["2x64"]["mamba"]  # it has no heads


def test_a_marked_cell_gets_the_rate_beyond_its_edge():
    runs = {
        (run.mixer, run.task, run.setting): run for run in plan.wider("default", plan.RESULTS / "draft" / "rows.csv")
    }
    assert len(runs) == 113
    assert runs["attn", "cmp", "baseline"].overrides.split()[-2:] == ["seed=0", "optimizer.lr=0.01"]
    assert {run.overrides.rpartition("=")[2] for run in runs.values()} == {"0.01", "0.00025"}


def test_what_is_done_is_not_listed():
    done = plan.finished_in("screen/rows.csv")
    left = list(plan.screen("default"))
    assert not {(run.recipe, run.mixer, run.task, run.setting) for run in left} & done
    assert len(left) + len(done) == 960


def test_costs_come_from_runs():
    """A cell that was run costs what it took; twice the replicas or a longer sequence cost more."""
    costs = plan.Costs()
    assert 3 * costs.of_replica("default", "attn", "sc", "seq_len-1024") == pytest.approx(94 / 2, abs=1)
    longer = costs.of_replica("default", "attn", "sc_challenge", "512-2048")
    assert longer == pytest.approx(costs.of_replica("default", "attn", "sc", "seq_len-1024") * 2**1.2)
    assert plan.replicas_of("mixer=attn seed=[0,1] optimizer.lr=[1e-2,1e-3]") == 4
    assert plan.replicas_of("mixer=attn seed=0") == 3
