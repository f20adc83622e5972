"""A project of the user's own: mixers, tasks and yamls in a folder outside this package.

`mixerlab --config-dir conf mixer=ema` finds `conf/mixer/ema.yaml`, and the class that its `_target_` names in the
folder that holds `conf`: `_target_: mixers.ema.MovingAverage` is `mixers/ema.py` beside `conf`.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf

from mixerlab.records.errors import reason

ConfigDir = str | Path | Sequence[str | Path] | None  # as Python takes it: none, one or several folders

_CONFIG_DIRS = "mixerlab.config_dirs"  # in the cache of a config
_projects: list[Path] = []  # the user's, which this process used last: the folders that hold their yamls


def command_line_folders(hydra_config: HydraConf) -> list[Path]:
    """The folders given with `--config-dir`."""
    providers = ("command-line", "hydra.searchpath in command-line")  # the last one given, and those before it
    sources = hydra_config.runtime.config_sources
    return [Path(source.path) for source in sources if source.provider in providers and source.schema == "file"]


def given(hydra_config: HydraConf) -> list[str]:
    """The settings `KEY=VALUE` of the command, as they were written, `${...}` too."""
    return cast(list[str], OmegaConf.to_container(cast(ListConfig, hydra_config.overrides.task)))


def search_path(urls: Sequence[str]) -> list[str]:
    """The override by which Hydra finds yamls in these places, such as `file:///home/me/conf`; none for none."""
    return [f"hydra.searchpath={json.dumps(list(urls), ensure_ascii=False)}"] if urls else []


def composed_anew(file: str, overrides: Sequence[str], hydra_config: HydraConf) -> DictConfig:
    """What Hydra composes of `<file>.yaml` and these overrides, with the yamls that the command finds."""
    loader = GlobalHydra.instance().config_loader()
    return loader.load_configuration(file, [*overrides, *search_path(hydra_config.searchpath)], RunMode.RUN)


def use_folders(config_dir: ConfigDir) -> list[Path]:
    """Makes modules beside each of these folders of yamls importable in this process; gives the folders."""
    folders = [] if config_dir is None else [config_dir] if isinstance(config_dir, str | Path) else config_dir
    resolved = list(dict.fromkeys(Path(folder).resolve() for folder in folders))
    for folder in resolved:
        if not folder.is_dir():
            raise ValueError(f"{folder}: there is no such folder: give --config-dir DIR, or config_dir=DIR in Python")
    _projects[:] = dict.fromkeys(folder.parent for folder in resolved)
    if sys.path[: len(_projects)] != (paths := list(map(str, _projects))):
        sys.path[:0] = paths
    return resolved


def check_yamls(folders: Sequence[Path]) -> None:
    """Raises ValueError or PyYAML's error for a yaml that has the name of another one, or cannot be read or used.

    Of two of a name Hydra takes one without a word, and it does not name what it cannot read, nor say what the keys of
    an experiment lack. `folders` are those that `use_folders` gave. Asked before anything is composed: what is composed
    goes on while its yamls are edited.
    """
    ours = Path(str(files("mixerlab.conf"))).resolve()
    owners = {ours: "mixerlab"}
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            file = path.relative_to(folder)
            others = [owner for other, owner in owners.items() if (other / file).is_file()]
            if others and folder != ours:
                raise ValueError(f"{folder.name}/{file}: {others[0]} has a yaml of this name: choose another one")
            try:
                OmegaConf.load(path)
            except (OSError, ValueError) as error:  # which do not name it, as PyYAML's do
                raise ValueError(f"{path} cannot be read: {reason(error)}") from error
            # Behind another line, even a comment, Hydra does not see it.
            if file.parts[0] == "experiment" and not re.match(r"\s*#\s*@package +_global_", path.read_text()):
                raise ValueError(f"{path}: an experiment's yaml must begin with the line `# @package _global_`")
        owners[folder] = str(folder)


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
    return list(_projects)


def check_yaml(part: Mapping[str, Any] | None, file: str, group: str = "mixer", overrides: Sequence[str] = ()) -> None:
    """Raises ValueError unless what `<group>/<file>.yaml` gives has the file's name, or one of the `overrides` sets it.

    Tables average runs of one name as if they were one thing.
    """
    if part is None:
        raise ValueError(f"{group}={file}: its yaml puts its keys elsewhere: remove its line `# @package`")
    name = file.rpartition("/")[2].removesuffix(".yaml")  # which Hydra reads too
    own = part.get("name") if isinstance(part, Mapping) else None  # it may be a list
    if own != name and not any(text.startswith(f"{group}.name=") for text in overrides):
        raise ValueError(f"{group}={file}: its yaml must have the file's name: write `name: {name}`")
