"""Whether what a config describes can be built: asked before a run trains, and of every cell of a sweep."""

import functools
import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from mixerlab.checks.construction import check_construction
from mixerlab.checks.optimizer import check_replicas_apart, check_schedule, check_step
from mixerlab.config.arguments import class_of
from mixerlab.config.building import Parts, TaskShape, grouping_of, loggers_of, maker, optimizer_maker
from mixerlab.mixers.attn import Attention
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.records.errors import RefusedCode, RefusedMixer, type_and_message, users_code, with_place
from mixerlab.records.identity import as_list
from mixerlab.tasks.base import Task
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import Population

log = logging.getLogger(__name__)


def check_buildable(
    cfg: DictConfig, task: Task, config: Mapping[str, Any], code: Mapping[str, str]
) -> tuple[Parts, int]:
    """Builds what the constructors of mixer, model, schedule, optimizer and loggers may refuse; nothing is kept.

    `checked` made `task`, `config` and `code` of `cfg`. Gives the parts of the run, and its model's state size.
    """
    described = {key: config[key] for key in ("mixer", "model", "optimizer", "schedule")}
    parts, mixers = _built(json.dumps(described, sort_keys=True), task.autoencode, json.dumps(code))
    sizes = [_call(mixer, name, "state_size", task.input_length) for name, mixer in mixers]
    for (name, mixer), size in zip(mixers, sizes, strict=True):
        if type(size) is not int or size < 1:
            raise ValueError(f"mixer={name}: state_size gives {size!r}, and must give a whole number above 0")
        # A mixer with a longest sequence refuses the length of longer test rows here.
        _call(mixer, name, "state_size", task.for_split("test").input_length)
    loggers_of(cfg, Path(cfg.results_dir))
    return parts, parts.model.n_layers // len(mixers) * sum(sizes)


@functools.lru_cache(maxsize=64)  # most cells of a sweep differ in their task only
def _built(described: str, autoencode: bool, code: str) -> tuple[Parts, list[tuple[str, SequenceMixer]]]:
    """The parts, and the mixers of a model with few layers; one replica of it has been built with its optimizer.

    `code` tells apart what classes of the same names were before and after a module was reloaded.
    """
    config = json.loads(described)
    parts = Parts.of(config)
    check_schedule(maker(config["schedule"], "schedule")(), config["schedule"]["name"])
    for name, make in parts.mixers:
        try:
            check_construction(partial(make, d_model=parts.model.d_model))
        except RefusedMixer as error:
            raise ValueError(f"mixer={name}: {error}") from error
    build = partial(parts.build_model, TaskShape(2, 1, autoencode), n_layers=len(parts.mixers))
    optimizer, schedule = config["optimizer"], config["schedule"]
    population = Population(build, (0,), grouping_of(optimizer))
    optimizer_maker(optimizer, schedule)(population=population, lr=as_list(optimizer["lr"])[:1], total_steps=8)
    check_optimizer(json.dumps([optimizer, schedule], sort_keys=True), code)
    mixers = parts.mixers_in(build())
    for name, mixer in mixers:
        # For a GPU, as the hosts that train may have one; without one here a mixer may fail to ask what it can do.
        device = torch.device("cuda")
        _call(mixer, name, "resolved_backend", device, torch.bfloat16, may_fail=not torch.cuda.is_available())
    return parts, mixers


@functools.lru_cache(maxsize=64)  # whatever the mixer and the model
def check_optimizer(parts: str, code: str) -> None:
    """Tries an optimizer of the user's own on a CPU, with a small model; warns where it fails, as one for a GPU may."""
    optimizer, schedule = json.loads(parts)
    if class_of(optimizer["_target_"]).__module__ == PopulationOptimizer.__module__:
        return

    def with_replicas(number: int) -> PopulationOptimizer:
        attention = partial(Attention, d_model=16, num_heads=2)
        model = partial(LanguageModel, vocab_size=8, d_model=16, n_layers=1, make_mixer=attention)
        population = Population(model, [0] * number, grouping_of(optimizer))
        rates = as_list(optimizer["lr"])[:1] * number
        return optimizer_maker(optimizer, schedule)(population=population, lr=rates, total_steps=8)

    alone, two = with_replicas(1), with_replicas(2)
    try:
        with users_code():
            check_step(alone)
            check_replicas_apart(two)
    except RefusedCode as error:
        raise ValueError(f"optimizer={optimizer['name']}: {error}") from error
    except Exception as error:
        log.warning("optimizer=%s fails on the CPU, and is not checked: %s", optimizer["name"], with_place(error))


def _call(mixer: SequenceMixer, name: str, method: str, *arguments: Any, may_fail: bool = False) -> Any:
    """What a method of a mixer gives; ValueError for an error of the user's code, unless it `may_fail`."""
    try:
        with users_code():
            return getattr(mixer, method)(*arguments)
    except ValueError as error:
        raise ValueError(f"mixer={name}: {error}") from error
    except Exception as error:
        if may_fail:
            return None
        raise ValueError(f"mixer={name}: {method} raises {type_and_message(error)}") from error
