"""A model, a task and a training that are small enough for a test, built from the public parts of `training`."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from mixerlab.mixers.attn import Attention
from mixerlab.models.language_model import LanguageModel
from mixerlab.training.callbacks import checkpoint_name
from mixerlab.training.fit import Training
from mixerlab.training.metrics import IGNORE_INDEX
from mixerlab.training.optimizers import Muon
from mixerlab.training.schedules import Constant
from mixerlab.training.trainer_config import TrainerConfig

VOCAB, LENGTH, WIDTH = 8, 10, 16
THREE = [(1e-2, 0), (1e-3, 0), (3e-3, 5)]  # replicas, by (lr, seed)
DEFAULTS = Path(__file__).parents[2] / "conf" / "trainer" / "default.yaml"


def build_model():
    return LanguageModel(VOCAB, WIDTH, n_layers=1, make_mixer=lambda: Attention(WIDTH, num_heads=2, qk_norm=False))


def successor_rows(rows, seed, learnable=True):
    """Random tokens, with each token's successor as its target (or a random one); no targets at the two ends."""
    rng = np.random.default_rng(seed)
    inputs = rng.integers(0, VOCAB, (rows, LENGTH))
    targets = (inputs + 1) % VOCAB if learnable else rng.integers(0, VOCAB, (rows, LENGTH))
    targets[:, :2] = targets[:, -1:] = IGNORE_INDEX
    return inputs, targets


def splits(train=70, val=20, test=20, learnable=True):
    sizes = {"train": train, "val": val, "test": test}
    return {name: successor_rows(rows, seed, learnable) for seed, (name, rows) in enumerate(sizes.items())}


def fit(replicas, folder, *, data=None, optimizer=Muon, build=build_model, options=None, **config):
    """Trains `replicas`, a list of (lr, seed). `options` are the optimizer's, all other keywords the trainer's.

    But `trained_rows` and `loggers` are those of `Training`, and `execution` is `trainer.replicas`.
    """
    own = {name: config.pop(name) for name in ("trained_rows", "loggers") if name in config}
    training = Training(
        build_model=build,
        splits=data if data is not None else splits(learnable=False),
        make_optimizer=partial(optimizer, schedule=config.pop("schedule", Constant()), **(options or {})),
        config=trainer_config(replicas=config.pop("execution", "auto"), **config),
        folder=folder,
        **own,
    )
    return training.train(replicas)


def interrupted(replicas, folder, step, optimizer=Muon, **settings):
    """What a training gives that fails in this step and is started again, and how many steps both made."""

    class Fails(optimizer):
        steps = 0

        def step(self, closure=None):
            Fails.steps += 1
            if Fails.steps == step:
                raise RuntimeError("power failure")
            super().step(closure)

    with pytest.raises(RuntimeError, match="power failure"):
        fit(replicas, folder, optimizer=Fails, **settings)
    torch.manual_seed(99)  # the default generator has no part in it
    return fit(replicas, folder, optimizer=Fails, **settings), Fails.steps


def equal(one, other):
    return one.replicas == other.replicas and one.metrics.equals(other.metrics)


def trainer_config(**given):
    """`conf/trainer`, with small values and those that are `given`."""
    small = {"epochs": 3, "batch_size": 16, "precision": "float32", "accelerator": "cpu"}
    rare = {"stop_when_perfect": False, "checkpoint_every": 1e9, "progress": False}
    return TrainerConfig(**dict(OmegaConf.load(DEFAULTS)) | small | rare | given)


def checkpoint_of(replicas, folder, code=None, **config):
    return folder / checkpoint_name(replicas, code, trainer_config(**config))


def replica_results(result, replica):
    """One replica's summary, and its rows of the metrics table without the column `replica`."""
    metrics = result.metrics[result.metrics["replica"] == replica]
    return result.replicas[replica], metrics.drop(columns="replica").reset_index(drop=True)


def assert_same_results(one, other, rtol=1e-4):
    """Asserts that the results of two replicas are equal, floats up to `rtol`."""
    (summary, metrics), (other_summary, other_metrics) = one, other
    assert list(metrics.columns) == list(other_metrics.columns)
    values = (torch.from_numpy(x.to_numpy(np.float64)) for x in (metrics, other_metrics))
    torch.testing.assert_close(*values, rtol=rtol, atol=1e-6, equal_nan=True)
    assert summary.keys() == other_summary.keys()
    for name, value in summary.items():
        if isinstance(value, float):
            torch.testing.assert_close(value, other_summary[name], rtol=rtol, atol=1e-6, msg=name)
        else:
            assert value == other_summary[name], name
