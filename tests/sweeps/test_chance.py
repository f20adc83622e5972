"""The level of a guess: as the tasks say it, for older records by the same rule, and as guessing really does."""

import math

import numpy as np
import pytest
from omegaconf import OmegaConf

from mixerlab.config.compose import compose
from mixerlab.config.settings import build_task, settings_of
from mixerlab.sweeps.tables.chance import chance_of
from mixerlab.tasks.base import IGNORE_INDEX

MAD = ("icr", "ncr", "fcr", "mem", "cmp", "sc", "icr_challenge", "ncr_challenge", "sc_challenge")


@pytest.mark.parametrize("name", MAD)
def test_older_records_have_the_level_of_their_task(name):
    task_cfg = compose(f"task={name}").task
    for setting in settings_of(task_cfg):
        task_cfg.setting = setting
        parameters = OmegaConf.to_container(task_cfg, resolve=True)
        row = {"task": name, **{f"task.{key}": value for key, value in parameters.items()}}
        level = build_task(task_cfg).chance
        assert chance_of(row) == pytest.approx(level) and 0 < level < 0.5
        assert chance_of(row | {"chance": 0.25}) == 0.25


def test_of_a_task_of_ones_own_it_is_not_known():
    assert math.isnan(chance_of({"task": "delay", "task.vocab_size": 8, "chance": None}))
    assert math.isnan(chance_of({"task": "icr", "task.vocab_size": "many"}))


@pytest.mark.parametrize("name", ["icr", "ncr", "fcr", "mem", "cmp", "sc", "mqar", "state_tracking"])
def test_a_guess_among_the_targets_reaches_it(name):
    """Per class, as the accuracy counts; the classes are those that are targets of any of the rows."""
    task = build_task(compose(f"task={name}", *(["task.vocab_size=128"] if name == "mqar" else [])).task)
    rng = np.random.default_rng(0)
    _, targets = task.generate(600, rng, "test")
    targets = targets[targets != IGNORE_INDEX]
    classes = np.unique(targets)
    guesses = rng.choice(classes, len(targets))
    if name == "cmp":  # of which the last is the compress token, always right
        guesses = np.where(targets == classes[-1], targets, rng.choice(classes[:-1], len(targets)))
    recall = [np.mean(guesses[targets == token] == token) for token in classes]
    assert np.mean(recall) == pytest.approx(task.chance, rel=0.15)
