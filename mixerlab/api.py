"""mixerlab from Python: what `import mixerlab` offers besides base classes and records."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import nn

from mixerlab import train
from mixerlab.checks.contract import WIDTH, check_everything
from mixerlab.config.building import Parts
from mixerlab.config.compose import compose
from mixerlab.config.project import ConfigDir, use_folders, use_noted_folders
from mixerlab.config.values import checked
from mixerlab.loading import load
from mixerlab.mixers.base import SequenceMixer
from mixerlab.records.identity import replicas_of
from mixerlab.records.provenance import COMMAND, shell_command
from mixerlab.records.schema import Record
from mixerlab.records.text import one_line
from mixerlab.training.population import seeded
from mixerlab.training.weights import start_from


def run(*overrides: str, config_dir: ConfigDir = None, config: DictConfig | None = None) -> Record | None:
    """Trains one run, unless it is finished, and returns its record.

    Args:
        overrides, config_dir: as for `compose`.
        config: a composed config, in place of overrides. By default `config_dir` is then the one that it was composed
            with or, of a config that does not know it, as from a file, that of the last call.

    Returns:
        The record, or None if another process is training this run.

    Raises:
        ValueError: as `compose`; a `config` that is not one of OmegaConf's, or has a value that no run can have; or
            `dry_run=true`, which leaves no record to return.
        mixerlab.RunFailed: training failed, which the record says too.
        OSError: the record cannot be written, for example because the disk is full.
    """
    if config is None:
        config = compose(*overrides, config_dir=config_dir)
        options = [f"--config-dir={folder}" for folder in use_folders(config_dir)]
        OmegaConf.get_cache(config)[COMMAND] = shell_command("mixerlab", *options, *overrides)
    elif overrides or not isinstance(config, DictConfig):
        raise ValueError("give overrides, or as `config` what mixerlab.compose or OmegaConf.load returns")
    elif config_dir is None:
        use_noted_folders(config)
    else:
        use_folders(config_dir)
    if config.get("dry_run") is True:
        raise ValueError("dry_run=true: mixerlab.run trains; mixerlab.compose(...) only gives the config")
    return train.run(config)


def check(mixer: Callable[..., SequenceMixer], d_model: int = WIDTH, **arguments: Any) -> str:
    """Checks that `mixer(d_model=..., **arguments)` keeps the contract, as `mixerlab check` does of a yaml.

    Returns how its replicas will compute. ValueError says the first check that the mixer fails, or that it is no class.
    """
    if isinstance(mixer, nn.Module) or not callable(mixer):
        given = one_line(repr(mixer))
        raise ValueError(f"{given} is no class: give check(MovingAverage); the command mixerlab check takes names")
    if isinstance(mixer, type) and not issubclass(mixer, SequenceMixer):
        raise ValueError(f"{mixer.__name__} must be a subclass of mixerlab.SequenceMixer")
    decision = check_everything(partial(mixer, d_model=d_model, **arguments), d_model)
    return decision.why or "replicas compute side by side, under vmap"


def build_model(*overrides: str, mixer: SequenceMixer | None = None, config_dir: ConfigDir = None) -> nn.Module:
    """The model with which a run of these overrides and its first seed begins, on the CPU, in float32.

    It maps token ids, int64 `[B, T]`, to logits, float32 `[B, T, V]`.

    Args:
        overrides, config_dir: as for `compose`.
        mixer: of which each layer gets a copy, in place of that of the config; its width is `model.d_model`.

    Raises:
        ValueError: as `compose`, or a value in the config that no run can have, such as a start that does not fit.
    """
    cfg = compose(*overrides, config_dir=config_dir)
    task, config, _ = checked(cfg)
    _, seed = replicas_of(config)[0]
    parts = Parts.of(config)
    if mixer is not None:
        if not isinstance(mixer, SequenceMixer):
            given = one_line(repr(mixer))
            raise ValueError(f"mixer={given} is no SequenceMixer: give one that is built, as MovingAverage(128)")
        parts = replace(parts, mixers=[("mixer", lambda **at: deepcopy(mixer))])
    with seeded(seed):
        model = parts.build_model(task)
    if cfg.model.start_from is not None:
        start_from(model, load(cfg.model.start_from).model)
    return model
