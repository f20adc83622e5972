"""A project of the user's own: mixers, tasks and yamls in a folder outside this package.

`mixerlab --config-dir conf mixer=ema` finds `conf/mixer/ema.yaml`, and the class that its `_target_` names in the
folder that holds `conf`: `_target_: mixers.ema.MovingAverage` is `mixers/ema.py` beside `conf`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from hydra.conf import HydraConf
from omegaconf import DictConfig, ListConfig, OmegaConf

from mixerlab.records.errors import reason

ConfigDir = str | Path | Sequence[str | Path] | None  # as Python takes it: none, one or several folders

_CONFIG_DIRS = "mixerlab.config_dirs"  # in the cache of a config
_projects: list[Path] = []  # the user's, which this process used last: the folders that hold their yamls


def command_line_folders(hydra_config: DictConfig | HydraConf) -> list[Path]:
    """The folders given with `--config-dir`."""
    providers = ("command-line", "hydra.searchpath in command-line")  # the last one given, and those before it
    sources = hydra_config.runtime.config_sources
    return [Path(source.path) for source in sources if source.provider in providers and source.schema == "file"]


def given(hydra_config: DictConfig | HydraConf) -> list[str]:
    """The settings `KEY=VALUE` of the command, as they were written."""
    return cast(list[str], OmegaConf.to_container(cast(ListConfig, hydra_config.overrides.task)))


def search_path(folders: Sequence[Path]) -> list[str]:
    """The override by which Hydra finds the yamls in these folders; none for none."""
    return searching([f"file://{folder.resolve()}" for folder in folders])


def searching(urls: Sequence[str]) -> list[str]:
    """The override by which Hydra finds yamls in these places; none for none."""
    return [f"hydra.searchpath={json.dumps(list(urls), ensure_ascii=False)}"] if urls else []


def use_folders(config_dir: ConfigDir) -> list[Path]:
    """Makes modules beside each of these folders of yamls importable in this process; gives the folders.

    With None no project is in use from now on, although modules of an earlier one can still be imported.
    """
    folders = [] if config_dir is None else [config_dir] if isinstance(config_dir, str | Path) else config_dir
    resolved = list(dict.fromkeys(Path(folder).resolve() for folder in folders))
    for number, folder in enumerate(resolved):
        if not folder.is_dir():
            raise ValueError(f"{folder}: there is no such folder: give --config-dir DIR, or config_dir=DIR in Python")
        _check_own_yamls(folder, resolved[:number])
    _projects[:] = dict.fromkeys(folder.parent for folder in resolved)
    if sys.path[: len(_projects)] != (paths := list(map(str, _projects))):
        sys.path[:0] = paths
    return resolved


def check_readable(folders: Sequence[Path]) -> None:
    """Raises ValueError or PyYAML's error for a yaml in these folders that cannot be read: Hydra does not name it.

    Asked before anything is composed. What is composed goes on while its yamls are edited.
    """
    for path in sorted(path for folder in folders for path in folder.rglob("*.yaml")):
        try:
            OmegaConf.load(path)
        except (OSError, ValueError) as error:  # which do not name it, as PyYAML's do
            raise ValueError(f"{path} cannot be read: {reason(error)}") from error


def note_folders(cfg: DictConfig, folders: Sequence[Path]) -> None:
    """Notes in a composed config the folders of yamls that it was composed with, for `use_noted_folders`.

    OmegaConf copies and pickles the cache with the config: a key would make it another run in another folder.
    """
    OmegaConf.get_cache(cfg)[_CONFIG_DIRS] = list(folders)


def use_noted_folders(cfg: DictConfig) -> None:
    """Uses the projects that a config was composed in; one without a note, as of a file, leaves the last in use."""
    cache = OmegaConf.get_cache(cfg)
    if _CONFIG_DIRS in cache:
        use_folders(cache[_CONFIG_DIRS])


def projects_in_use() -> list[Path]:
    """The folders that hold the yamls which `use_folders` got last."""
    return list(_projects)


def _check_own_yamls(config_dir: Path, others: Sequence[Path]) -> None:
    ours = files("mixerlab.conf")
    if config_dir == Path(str(ours)).resolve():
        return
    for path in sorted(config_dir.rglob("*.yaml")):
        file = path.relative_to(config_dir)
        holders = ["mixerlab"] * ours.joinpath(*file.parts).is_file()
        if holders := [*holders, *(str(other) for other in others if (other / file).is_file())]:
            where = f"{config_dir.name}/{file}"
            raise ValueError(f"{where}: {holders[0]} has a yaml of this name: choose another one")


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
