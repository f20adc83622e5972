"""A project of the user's own: mixers, tasks and yamls in a folder outside this package.

`mixerlab --config-dir conf mixer=ema` finds `conf/mixer/ema.yaml`, and the class that its `_target_` names in the
folder that holds `conf`: `_target_: mixers.ema.MovingAverage` is `mixers/ema.py` beside `conf`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig, OmegaConf

from mixerlab.config.postponed import GROUPS

_used: list[Path] = []  # the project that this process used last, if any
_CONFIG_DIR = "mixerlab.config_dir"  # in the cache of a config


def command_line_folder(hydra_config: DictConfig | HydraConf) -> Path | None:
    """The folder given with `--config-dir`."""
    for source in hydra_config.runtime.config_sources:
        if source.provider == "command-line" and source.schema == "file":
            return Path(source.path)
    return None


def use_folder(config_dir: Path | None) -> list[str]:
    """Makes modules beside `config_dir` importable in this process; gives the override by which Hydra finds its yamls.

    With None no project is in use from now on, although modules of an earlier one can still be imported.

    Raises:
        ValueError: there is no such folder, or one of its yamls has the place of one of ours, which Hydra would take.
    """
    if config_dir is None:
        _used.clear()
        return []
    if not config_dir.is_dir():
        raise ValueError(f"{config_dir}: there is no such folder: give --config-dir DIR, or config_dir=DIR in Python")
    _check_no_file_of_ours(config_dir.resolve())
    project = config_dir.resolve().parent
    _used[:] = [project]
    if sys.path[:1] != [str(project)]:
        sys.path.insert(0, str(project))
    return [f"hydra.searchpath={json.dumps([f'file://{config_dir.resolve()}'], ensure_ascii=False)}"]


def note_folder(cfg: DictConfig, config_dir: Path | None) -> None:
    """Notes in a composed config the folder of yamls that it was composed with, if any, for `use_noted_folder`.

    OmegaConf copies and pickles the cache with the config: a key would make it another run in another folder.
    """
    OmegaConf.get_cache(cfg)[_CONFIG_DIR] = config_dir and config_dir.resolve()


def use_noted_folder(cfg: DictConfig) -> None:
    """Uses the project that a config was composed in; one without a note, as of a file, leaves the last in use.

    Raises:
        ValueError: the folder of that project is not there any more.
    """
    cache = OmegaConf.get_cache(cfg)
    if _CONFIG_DIR in cache:
        use_folder(cache[_CONFIG_DIR])


def project_in_use() -> Path | None:
    """The folder that holds the yamls which `use_folder` got last; None if it got none."""
    return _used[0] if _used else None


def _check_no_file_of_ours(config_dir: Path) -> None:
    ours = files("mixerlab.conf")
    if config_dir == Path(str(ours)).resolve():
        return
    for path in sorted(config_dir.rglob("*.yaml")):
        file = path.relative_to(config_dir)
        if ours.joinpath(*file.parts).is_file():
            raise ValueError(f"{config_dir.name}/{file}: mixerlab has a yaml of this name: choose another one")


def check_yamls(cfg: DictConfig, hydra_config: DictConfig | HydraConf) -> None:
    """`check_yaml` of each group whose yaml was chosen."""
    for group in GROUPS:
        if isinstance(file := hydra_config.runtime.choices.get(group), str):
            check_yaml(cfg.get(group), file, group, hydra_config.overrides.task)


def check_yaml(
    part: Mapping[str, Any] | DictConfig | None, file: str, group: str = "mixer", overrides: Sequence[str] = ()
) -> None:
    """Raises ValueError unless what `<group>/<file>.yaml` gives has the file's name, or one of the `overrides` sets it.

    Tables average runs of one name as if they were one thing.
    """
    if part is None:
        raise ValueError(f"{group}={file}: its yaml puts its keys elsewhere: remove its line `# @package`")
    if not isinstance(part, Mapping | DictConfig):
        raise ValueError(f"{group}={file}: its yaml must have keys, such as `name: {file}`")
    name = file.rpartition("/")[2]
    if part.get("name") != name and not any(text.startswith(f"{group}.name=") for text in overrides):
        raise ValueError(f"{group}={file}: its yaml must have the file's name: write `name: {name}`")
