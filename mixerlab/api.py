"""mixerlab from Python: what `import mixerlab` offers besides base classes and records."""

from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from torch import nn
from yaml import MarkedYAMLError

from mixerlab import building
from mixerlab import train as runs
from mixerlab.config.hints import check_choices, check_one_run, refusal
from mixerlab.config.hybrid import expand
from mixerlab.config.project import note_folder, use_folder, use_noted_folder
from mixerlab.config.settings import register_resolvers
from mixerlab.config.values import checked
from mixerlab.records.identity import replicas_of
from mixerlab.training.randomness import seeded

_CONFIG_DIR = "config_dir=DIR or --config-dir DIR"  # `mixerlab check` composes here too


def compose(*overrides: str, config_dir: str | Path | None = None) -> DictConfig:
    """The config of the command `mixerlab *overrides`.

    Args:
        overrides: as on the command line, such as `"mixer=gdn"` or `"task.seq_len=64"`.
        config_dir: a folder of your own yamls, as with `--config-dir`; classes are found in the folder that holds it.

    Returns:
        The composed config, with interpolations, as `mixerlab.run(config=...)` takes it. It, its copies, and
        merges of which it is the first config, remember `config_dir`.

    Raises:
        ValueError: an override that is no string, or that Hydra refuses; a yaml that cannot be read; a hybrid's layer
            that does not exist, or a key that it does not have.
    """
    for override in overrides:
        if not isinstance(override, str):
            kind = type(override).__name__
            raise ValueError(f"override {override!r} is a {kind}, not a string: write 'mixer=attn', 'task=icr'")
        check_one_run(override)
    check_choices(overrides, _CONFIG_DIR)
    register_resolvers()
    search = use_folder(None if config_dir is None else Path(config_dir))
    with initialize_config_module("mixerlab.conf", version_base="1.3"):
        try:
            cfg = hydra_compose("config", [*search, *overrides], return_hydra_config=True)
            hydra_config = cfg.hydra
            cfg = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
            expand(cfg, hydra_config, GlobalHydra.instance().config_loader())
        except (HydraException, MarkedYAMLError) as error:
            raise ValueError(refusal(error, _CONFIG_DIR)) from error
        note_folder(cfg, None if config_dir is None else Path(config_dir))
        return cfg


def run(*overrides: str, config_dir: str | Path | None = None, config: DictConfig | None = None) -> dict | None:
    """Trains one run, unless it is finished, and returns its record (the content of `record.json`).

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
    if config is not None and overrides:
        raise ValueError(f"give a config or overrides ({', '.join(overrides)}), not both")
    if config is None:
        cfg = compose(*overrides, config_dir=config_dir)
    else:
        if not isinstance(config, DictConfig):
            kind = type(config).__name__
            raise ValueError(f"config is a {kind}: give what mixerlab.compose or OmegaConf.load returns")
        cfg = config
        register_resolvers()  # one that was saved has interpolations
        if config_dir is None:
            use_noted_folder(cfg)
        else:
            use_folder(Path(config_dir))
    if cfg.get("dry_run") is True:
        raise ValueError(
            "dry_run=true: mixerlab.run trains and returns a record; mixerlab.compose(...) only gives the config, and"
            " the command line says what would run"
        )
    return runs.run(cfg, patience=runs.PATIENCE)


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
    task, config = checked(cfg)
    _, seed = replicas_of(config)[0]
    with seeded(seed):
        return building.build_model(cfg, task)
