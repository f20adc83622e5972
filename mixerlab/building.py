"""What a config describes, built: a model, its mixers, an optimizer, loggers. And whether it can be built at all."""

import functools
import itertools
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from mixerlab.config import code_versions
from mixerlab.hybrid import is_hybrid, mixers_of
from mixerlab.loggers import check_installed
from mixerlab.mixers.attn import Attention
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.auto_encoder import LINEAR_STD, AutoEncoder
from mixerlab.models.initial_values import overwritten
from mixerlab.models.language_model import LanguageModel
from mixerlab.strays import strays
from mixerlab.sweeps.records.files import run_folder
from mixerlab.sweeps.records.identity import as_list, run_id
from mixerlab.tasks.base import Task
from mixerlab.training.optimizers import PopulationOptimizer, has_own_step
from mixerlab.training.population import Grouping, Population
from mixerlab.training.schedules import Schedule
from mixerlab.user_code import one_line, raised_by_us, with_place

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

_GRID = 10_000  # points of progress at which a schedule is looked at: more than the steps of a MAD run, at most 6,000


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
    _check_schedule(schedule, cfg.schedule.name)
    small = _Sizes(vocab_size=2, input_length=1, autoencode=autoencode)
    population = Population(partial(build_model, cfg, small), (0,), grouping_of(cfg))
    of_run = {"population": population, "lr": [rate], "schedule": schedule, "total_steps": 8}
    optimizer = component(cfg.optimizer, "optimizer", **of_run)
    _check_step(optimizer, cfg.optimizer.name)
    if type(optimizer).__module__ != PopulationOptimizer.__module__:
        _check_replicas_apart(json.dumps([config["optimizer"], config["schedule"]], sort_keys=True), code)
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


def _check_step(optimizer: PopulationOptimizer, name: str) -> None:
    """ValueError unless a step of the user's own counts itself, and stops a replica whose gradient is not finite."""
    if not has_own_step(type(optimizer)):
        return
    parameters, state = optimizer.parameters, optimizer.state[optimizer.parameters]
    seen = []  # in steps with a finite gradient, one that is not, and a finite one again
    for gradient in (1.0, torch.nan, 1.0):
        parameters.grad = torch.full_like(parameters, gradient)
        before = parameters.detach().clone()
        try:
            optimizer.step()
        except Exception as error:  # of the user's code
            raise ValueError(f"optimizer={name}: {with_place(error)}") from error
        stays = not optimizer.active.any() and torch.equal(parameters, before)
        seen.append((stays, state["step_number"].item(), state["steps_taken"].item()))
    if seen != [(False, 1, 1), (True, 2, 1), (True, 3, 1)]:
        raise ValueError(
            f"optimizer={name}: its step must add 1 to `step_number` and, for each active replica, to `steps_taken`,"
            " and must clear `active` and leave the parameters of a replica whose gradient was not finite:"
            " see training/README.md"
        )


@functools.lru_cache(maxsize=64)
@torch.no_grad()
def _check_replicas_apart(parts: str, code: str) -> None:
    """ValueError unless an optimizer of the user's own moves each of two replicas by its gradient and state only.

    On a CPU and with a small model, whatever the run's: an optimizer that needs a GPU is not checked.
    """
    config, of_schedule = json.loads(parts)
    cfg, width = OmegaConf.create(config), 16
    population = Population(
        partial(LanguageModel, 8, width, n_layers=1, make_mixer=partial(Attention, width, num_heads=2)),
        (0, 0),
        grouping_of(OmegaConf.create({"optimizer": cfg})),
    )
    rates, schedule = [as_list(config["lr"])[0]] * 2, component(OmegaConf.create(of_schedule), "schedule")
    optimizer = component(cfg, "optimizer", population=population, lr=rates, schedule=schedule, total_steps=8)
    parameters, state = optimizer.parameters, optimizer.state[optimizer.parameters]
    if others := [key for key, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise ValueError(f"optimizer={cfg.name}: self.state[self.parameters] has {others[0]}, which is no tensor")
    start, start_state = parameters.clone(), {key: tensor.clone() for key, tensor in state.items()}
    gradients = torch.randn(2, *parameters.shape, generator=torch.Generator().manual_seed(0))

    def first_replica(share: float) -> torch.Tensor:
        """Where two steps move it, if the other one has `share` of its gradients. (Below 1, as these are clipped.)"""
        parameters.copy_(start)
        for key in list(state):
            if key in start_state:
                state[key].copy_(start_state[key])
            else:  # made in a step
                del state[key]
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            for gradient in gradients.clone():
                gradient[1] *= share
                parameters.grad = gradient
                optimizer.step()
        return parameters[0].clone()

    try:
        given = optimizer.direction(torch.ones(2, optimizer.directed())) if optimizer.directed() else None
        _check_direction(given, [2, optimizer.directed()], cfg.name)
        moved, again, beside_another = first_replica(1.0), first_replica(1.0), first_replica(-1e-4)
    except _WrongDirection:
        raise
    except Exception:  # of the user's code, which may need a GPU: a run on this device raises it again
        return
    if not moved.isfinite().all():
        raise ValueError(f"optimizer={cfg.name}: from finite gradients its step gives parameters that are not finite")
    rounding = 1e-3 * (moved - start[0]).abs().max().item()
    if not torch.allclose(again, moved, rtol=0, atol=rounding):
        raise ValueError(
            f"optimizer={cfg.name}: its step depends on what it keeps outside of self.state[self.parameters], which a"
            " checkpoint does not have: keep tensors there, one row a replica"
        )
    if not torch.allclose(beside_another, moved, rtol=0, atol=rounding):
        raise ValueError(
            f"optimizer={cfg.name}: its step mixes replicas: one moves otherwise beside another with other gradients."
            " Each row of a tensor [R, ...] is a replica: reduce over dim=1, and never over the rows"
        )


class _WrongDirection(ValueError):
    """`direction` gives something else than a tensor like the momentum."""


def _check_direction(given: Any, wanted: list[int], name: str) -> None:
    if given is not None and (not isinstance(given, torch.Tensor) or list(given.shape) != wanted):
        shape = f"{list(given.shape)}" if isinstance(given, torch.Tensor) else repr(given)
        raise _WrongDirection(
            f"optimizer={name}: direction gives {shape} for a momentum of {wanted}, and must give a tensor like it"
        )


def _check_schedule(schedule: Schedule, name: str) -> None:
    """ValueError unless its multipliers are finite and not negative, as far as a grid of progress shows."""
    progress = torch.arange(_GRID + 1) / _GRID
    for what in ("learning_rate", "weight_decay"):
        try:
            values = getattr(schedule, what)(progress)
        except Exception as error:  # of the user's code
            raise ValueError(f"schedule={name}: {what}: {with_place(error)}") from error
        if not isinstance(values, torch.Tensor) or values.shape != progress.shape:
            given = f"shape {list(values.shape)}" if isinstance(values, torch.Tensor) else repr(values)
            raise ValueError(f"schedule={name}: {what}(progress) gives {given}, and must give a tensor like progress")
        if (wrong := ~(values.isfinite() & (values >= 0))).any():
            first = int(wrong.int().argmax())
            raise ValueError(
                f"schedule={name}: {what} is {values[first]:.3g} at progress {progress[first]:g}, and must be finite"
                " and at least 0"
            )


class _ErrorOfTheirs(ValueError):
    """An error of the user's code that is not a refusal, a ValueError of its own."""


def _call(mixer: SequenceMixer, name: str, method: str, *arguments: Any) -> Any:
    """What a method of a mixer gives; ValueError for any error of the user's code."""
    try:
        return getattr(mixer, method)(*arguments)
    except ValueError:
        raise
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


def grouping_of(cfg: DictConfig) -> Grouping:
    return Grouping(**{key: cfg.optimizer[key] for key in ("filters", "decoder", "head") if key in cfg.optimizer})


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
