"""What a config describes, built: a model, its mixers, an optimizer, loggers. And whether it can be built at all."""

import functools
import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from mixerlab.checks.optimizer import check_replicas_apart, check_schedule, check_step
from mixerlab.checks.strays import strays
from mixerlab.config.hybrid import is_hybrid, mixers_of
from mixerlab.config.values import code_versions
from mixerlab.loggers import check_installed
from mixerlab.mixers.attn import Attention
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.auto_encoder import LINEAR_STD, AutoEncoder
from mixerlab.models.initial_values import overwritten
from mixerlab.models.language_model import LanguageModel
from mixerlab.records.errors import one_line, raised_by_us, with_place
from mixerlab.records.files import run_folder
from mixerlab.records.identity import as_list, run_id
from mixerlab.tasks.base import Task
from mixerlab.training.optimizers import PopulationOptimizer
from mixerlab.training.population import Grouping, Population

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

log = logging.getLogger(__name__)


def component(cfg: Mapping[str, Any] | DictConfig, group: str = "", **arguments: Any) -> Any:
    """Instantiates a config whose `name` is a label, which messages give after its `group`, if that is said.

    Raises:
        ValueError: what a constructor of ours refuses, without Hydra's traceback around it. Any other error of a
            constructor is one too, with its place in the user's code.
    """
    name = f"{group}={cfg['name']}" if group else cfg.get("name", cfg.get("_target_"))
    return _instantiated({str(key): value for key, value in cfg.items() if key != "name"}, name, **arguments)


def _instantiated(cfg: Mapping[str, Any], name: str, **arguments: Any) -> Any:
    try:
        # A list, and not a ListConfig, which PyTorch refuses as a shape.
        convert = {} if "_convert_" in cfg else {"_convert_": "object"}
        return instantiate(cfg, **convert, **arguments)
    except InstantiationException as error:
        cause = error.__cause__ or error
        if type(cause) is ValueError and raised_by_us(cause):
            raise cause from None
        raise ValueError(f"{name}: {with_place(cause)}") from error


def check_buildable(cfg: DictConfig, task: Task, config: Mapping[str, Any]) -> int:
    """Builds what the constructors of mixer, model, schedule, optimizer and loggers may refuse; nothing is kept.

    Args:
        cfg, task, config: a config, and what `checked` made of it.

    Returns:
        The state size of the model at the length that it trains on.

    Raises:
        ValueError: the first refusal.
    """
    parts = {key: config[key] for key in ("mixer", "model", "optimizer", "schedule")}
    mixers = _built(json.dumps(parts, sort_keys=True), task.autoencode, json.dumps(code_versions(config)))
    sizes = [_call(mixer, name, "state_size", task.input_length) for name, mixer in mixers]
    for (name, mixer), size in zip(mixers, sizes, strict=True):
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"mixer={name}: state_size gives {size!r}, and must give a whole number above 0")
        # A mixer with a longest sequence refuses the length of longer test rows here.
        _call(mixer, name, "state_size", task.of_split("test").input_length)
    loggers_of(cfg, run_folder(cfg.results_dir, run_id(config)))
    return cfg.model.n_layers // len(mixers) * sum(sizes)


class _Sizes(NamedTuple):
    """What a model takes from its task."""

    vocab_size: int
    input_length: int
    autoencode: bool


@functools.lru_cache(maxsize=64)  # most cells of a sweep differ in their task only
def _built(parts: str, autoencode: bool, code: str) -> list[tuple[str, SequenceMixer]]:
    """The mixers of a model with as few layers as it can have; one replica of it has been built with its optimizer.

    `code` tells apart what classes of the same names were before and after a module was reloaded.
    """
    config = json.loads(parts)
    rate = as_list(config["optimizer"]["lr"])[0]
    cfg = OmegaConf.create(config)
    cfg.model.n_layers = len(mixers_of(cfg.mixer))
    schedule = component(cfg.schedule, "schedule")
    check_schedule(schedule, cfg.schedule.name)
    small = _Sizes(vocab_size=2, input_length=1, autoencode=autoencode)
    population = Population(partial(build_model, cfg, small), (0,), grouping_of(cfg.optimizer))
    of_run = {"population": population, "lr": [rate], "schedule": schedule, "total_steps": 8}
    optimizer = component(cfg.optimizer, "optimizer", **of_run)
    if type(optimizer).__module__ != PopulationOptimizer.__module__:
        _check_own_optimizer(json.dumps([config["optimizer"], config["schedule"]], sort_keys=True), code)
    mixers = mixers_in(cfg, build_model(cfg, small))
    for name, mixer in mixers:
        for stray in strays(mixer):
            if stray.is_lost:
                raise ValueError(f"mixer={name}: {stray}")
        try:  # for a GPU, whatever this host has: the hosts that train may have one
            _call(mixer, name, "resolved_backend", torch.device("cuda"), torch.bfloat16)
        except _ErrorOfTheirs:  # without a GPU a mixer may fail because it asks for the GPU's capability
            if torch.cuda.is_available():
                raise
    return mixers


@functools.lru_cache(maxsize=64)  # whatever the mixer and the model
def _check_own_optimizer(parts: str, code: str) -> None:
    """ValueError if an optimizer of the user's own fails a check of `training_contract`, with a small model on the CPU.

    One that runs on a GPU only is not checked, and a warning says so.
    """
    optimizer, schedule = json.loads(parts)

    def of_replicas(number: int) -> PopulationOptimizer:
        attention = partial(Attention, d_model=16, num_heads=2)
        model = partial(LanguageModel, vocab_size=8, d_model=16, n_layers=1, make_mixer=attention)
        population = Population(model, [0] * number, grouping_of(optimizer))
        of_run = {"population": population, "lr": [as_list(optimizer["lr"])[0]] * number, "total_steps": 8}
        return component(optimizer, "optimizer", schedule=component(schedule, "schedule"), **of_run)

    alone, two = of_replicas(1), of_replicas(2)
    try:
        check_step(alone)
        check_replicas_apart(two)
    except Exception as error:
        if type(error) is ValueError and raised_by_us(error):
            raise ValueError(f"optimizer={optimizer['name']}: {error}") from error
        log.warning("optimizer=%s is not checked, as it fails on the CPU: %s", optimizer["name"], with_place(error))


class _ErrorOfTheirs(ValueError):
    """An error of the user's code that is not a refusal, a ValueError of its own."""


def _call(mixer: SequenceMixer, name: str, method: str, *arguments: Any) -> Any:
    """What a method of a mixer gives; ValueError for any error of the user's code."""
    try:
        return getattr(mixer, method)(*arguments)
    except ValueError as error:
        raise ValueError(f"mixer={name}: {error}") from error
    except Exception as error:
        raise _ErrorOfTheirs(f"mixer={name}: {method} raises {type(error).__name__}: {one_line(error)}") from error


def mixers_in(cfg: DictConfig, model: LanguageModel | AutoEncoder) -> list[tuple[str, SequenceMixer]]:
    """The mixers of the first layers, each with its name: one, or those of a hybrid's pattern."""
    names = [mixer["name"] for mixer in mixers_of(cfg.mixer).values()]
    mixers: list[Any] = [block.mixer for block in list(model.blocks)[: len(names)]]
    for name, mixer in zip(names, mixers, strict=True):
        if not isinstance(mixer, SequenceMixer):
            raise ValueError(f"mixer={name}: {type(mixer).__name__} must be a subclass of mixerlab.SequenceMixer")
    return list(zip(names, mixers, strict=True))


def grouping_of(optimizer: Mapping[str, Any] | DictConfig) -> Grouping:
    return Grouping(**{key: optimizer[key] for key in ("filters", "decoder", "head") if key in optimizer})


def build_model(cfg: DictConfig, task: Task | _Sizes) -> LanguageModel | AutoEncoder:
    """One replica's model for `task`: a language model, or the auto-encoder if the task asks for it."""
    make_mixer = partial(next, _layer_mixers(cfg))
    sizes = {"d_model": cfg.model.d_model, "n_layers": cfg.model.n_layers, "make_mixer": make_mixer}
    if task.autoencode:
        return AutoEncoder(task.vocab_size, task.input_length, **sizes, redraw_all=cfg.model.autoencoder_redraw_all)
    return LanguageModel(task.vocab_size, **sizes, linear_std=cfg.model.linear_std)


def initial_value_warnings(cfg: DictConfig, autoencode: bool) -> list[str]:
    """A sentence for each mixer whose initial values the model overwrites although they look chosen."""
    if autoencode and cfg.model.autoencoder_redraw_all:
        return []  # as asked for
    linear_std = LINEAR_STD if autoencode else cfg.model.linear_std
    warnings: list[str] = []
    for mixer in mixers_of(cfg.mixer).values():
        if names := list(overwritten(component(mixer, d_model=cfg.model.d_model), linear_std)):
            warnings.append(
                f"mixer={mixer.name} sets initial values of {', '.join(names)}, and the model overwrites them:"
                " mixerlab.mixers.base.keep_initial_values(parameter) keeps them"
            )
    return list(dict.fromkeys(warnings))


def _layer_mixers(cfg: DictConfig) -> Iterator[SequenceMixer]:
    """The mixers of the layers, from the first on, without end: those of a hybrid in turn."""
    for prefix, mixer in itertools.cycle(mixers_of(cfg.mixer).items()):
        try:
            yield component(mixer, d_model=cfg.model.d_model)
        except ValueError as error:
            if is_hybrid(cfg.mixer):  # the message does not say in which layer
                raise ValueError(f"{prefix} ({mixer['name']}): {error}") from error
            raise


def loggers_of(cfg: DictConfig, folder: Path) -> dict[str, "Logger"]:
    """The run's loggers by their keys in the config; ValueError for one that cannot be made."""
    loggers = {}
    for name, logger in cfg.logger.items():
        if not isinstance(logger, DictConfig) or "_target_" not in logger:
            raise ValueError(f"logger.{name}={logger!r} must be a group of keys with a _target_")
        check_installed(name, logger._target_)
        loggers[name] = _instantiated(logger, f"logger.{name}", save_dir=folder)
    return loggers
