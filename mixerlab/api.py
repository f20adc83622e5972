"""mixerlab from Python: what `import mixerlab` offers besides base classes and records."""

from pathlib import Path

from omegaconf import DictConfig
from torch import nn

from mixerlab import train
from mixerlab.config import building
from mixerlab.config.compose import compose
from mixerlab.config.project import use_folder, use_noted_folder
from mixerlab.config.values import checked
from mixerlab.records.identity import replicas_of
from mixerlab.records.schema import Record
from mixerlab.training.population import seeded


def run(*overrides: str, config_dir: str | Path | None = None, config: DictConfig | None = None) -> Record | None:
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
    elif overrides or not isinstance(config, DictConfig):
        raise ValueError("give overrides, or as `config` what mixerlab.compose or OmegaConf.load returns")
    elif config_dir is None:
        use_noted_folder(config)
    else:
        use_folder(Path(config_dir))
    if config.get("dry_run") is True:
        raise ValueError("dry_run=true: mixerlab.run trains; mixerlab.compose(...) only gives the config")
    return train.run(config, patience=train.PATIENCE)


def build_model(*overrides: str, config_dir: str | Path | None = None) -> nn.Module:
    """The untrained model of a run with these overrides, on the CPU, in float32.

    It maps token ids, int64 `[B, T]`, to logits, float32 `[B, T, V]`. Its initial values are those of the run's first
    seed.

    Args:
        overrides, config_dir: as for `compose`.

    Raises:
        ValueError: as `compose`, or a value in the config that no run can have.
    """
    cfg = compose(*overrides, config_dir=config_dir)
    task, config, _ = checked(cfg)
    _, seed = replicas_of(config)[0]
    with seeded(seed):
        return building.build_model(cfg, task)
