"""Which runs of a sweep may share CUDA graphs: those that compute the same with other values."""

import functools

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

import mixerlab
from mixerlab.checks.buildable import check_buildable
from mixerlab.config.settings import build_task
from mixerlab.config.values import checked
from mixerlab.training import capture
from mixerlab.training.optimizers import AdamW, in_tensors

CODE = {"mixer": "0" * 12, "task": "0" * 12, "training": "0" * 12}


@pytest.fixture(autouse=True, scope="module")
def instance():
    """PyTorch replaces the step of a class when it makes the first instance."""
    cfg = mixerlab.compose("mixer=attn", "task=icr", "optimizer=muon")
    task, config, code = checked(cfg)
    check_buildable(cfg, task, config, code)


def graph_key(*overrides, code=None):
    cfg = mixerlab.compose(*overrides)
    task, config = build_task(cfg.task), OmegaConf.to_container(cfg, resolve=True)
    sizes, read = [task.vocab_size, task.input_length, task.autoencode], in_tensors(get_class(cfg.optimizer._target_))
    return capture.graph_key(config, code or CODE, sizes, task.num_examples("train"), read)


@functools.cache
def usual_key():
    return graph_key()


ALIKE = "optimizer.lr=[1e-2,1e-4] optimizer.weight_decay=0.5 seed=[3,4] schedule=cosine model.may_see_future=true"
ALIKE += " task.setting=num_train_examples-800 task.data_seed=7 trainer.epochs=3 results_dir=elsewhere"
UNLIKE = "mixer=attn mixer.num_heads=4 mixer.backend=reference model.n_layers=3 optimizer=adamw optimizer.momentum=0.9"
UNLIKE += " optimizer.max_grad_norm=2.0 task.setting=vocab_size-32 task.setting=seq_len-256 task=cmp"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("override", [*ALIKE.split(), *UNLIKE.split()])
def test_runs_that_differ_in_values_alone_share_graphs_and_no_others(override):
    assert (graph_key(override) == usual_key()) == (override in ALIKE)


def test_runs_of_other_code_share_nothing():
    assert graph_key(code=CODE | {"task": "1" * 12}) == usual_key()
    assert graph_key(code=CODE | {"mixer": "1" * 12}) != usual_key() != graph_key(code=CODE | {"training": "1" * 12})


class Steps(AdamW):
    def step(self, closure=None):
        raise NotImplementedError


class Directs(AdamW):
    def direction(self, momentum, gradient):
        raise NotImplementedError


FROM_STEP = [(Steps, "schedule=cosine"), (Steps, "optimizer.weight_decay=0.5")]
FROM_DIRECTION = [(Directs, "trainer.epochs=3"), (Directs, "task.setting=num_train_examples-6400")]


@pytest.mark.parametrize(("own", "override"), [*FROM_STEP, *FROM_DIRECTION])
def test_of_a_step_or_direction_that_is_not_ours_nothing_is_known_to_be_in_tensors(own, override):
    options = ("optimizer=adamw", f"optimizer._target_={__name__}.{own.__name__}")
    assert graph_key(*options, override) != graph_key(*options) == graph_key(*options, "seed=3")
