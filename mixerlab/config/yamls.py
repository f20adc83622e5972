"""Whether a part of a config has the name of its yaml: tables average runs of one name as if they were one thing."""

from collections.abc import Mapping
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig

from mixerlab.config.postponed import GROUPS


def check_yaml(mixer: Mapping[str, Any] | DictConfig, file: str) -> None:
    """Raises ValueError unless what `mixer/<file>.yaml` gives has a class and the file's name.

    The name labels the mixer in records and tables: two files of one name would be averaged as if they were one mixer.
    """
    if file.endswith((".yaml", ".yml")):
        raise ValueError(f"mixer={file}: give the name without its suffix: {file.rpartition('.')[0]}")
    for key in ("name", "_target_"):
        if not mixer.get(key):
            raise ValueError(f"the yaml of mixer={file} lacks the key {key}")
    name = file.rpartition("/")[2]
    if mixer["name"] != name:
        raise ValueError(
            f"mixer={file}: `name: {mixer['name']}` in its yaml must be the file's name: write `name: {name}`"
        )


def check_names(cfg: DictConfig, hydra_config: DictConfig | HydraConf) -> None:
    """Checks that the yamls of task, optimizer and schedule have their files' names, as `check_yaml` does of a mixer.

    On the command line a name may be set on purpose.

    Raises:
        ValueError: another name; or a yaml of one of these groups, or of a mixer, with keys outside its group.
    """
    for group in GROUPS:
        file = hydra_config.runtime.choices.get(group)
        if isinstance(file, str) and group not in cfg:
            raise ValueError(
                f"{group}={file}: its yaml puts its keys elsewhere than under `{group}`: remove its line `# @package`,"
                " which is for experiments"
            )
    for group in ("task", "optimizer", "schedule"):
        file, part = hydra_config.runtime.choices.get(group), cfg.get(group)
        if not isinstance(file, str) or not isinstance(part, DictConfig) or not part.get("name"):
            continue  # which is told elsewhere
        name = file.rpartition("/")[2]
        if part.name != name and not any(given.startswith(f"{group}.name=") for given in hydra_config.overrides.task):
            raise ValueError(
                f"{group}={file}: `name: {part.name}` in its yaml must be the file's name, by which tables call it:"
                f" write `name: {name}`"
            )
