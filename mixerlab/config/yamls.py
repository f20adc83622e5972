"""Whether a yaml has the name of its file: tables average runs of one name as if they were one thing."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.conf import HydraConf
from omegaconf import DictConfig

from mixerlab.config.postponed import GROUPS


def check_yamls(cfg: DictConfig, hydra_config: DictConfig | HydraConf) -> None:
    """`check_yaml` of each group whose yaml was chosen."""
    for group in GROUPS:
        file = hydra_config.runtime.choices.get(group)
        if isinstance(file, str):
            check_yaml(cfg.get(group), file, group, hydra_config.overrides.task)


def check_yaml(
    part: Mapping[str, Any] | DictConfig | None, file: str, group: str = "mixer", overrides: Sequence[str] = ()
) -> None:
    """Raises ValueError unless what `<group>/<file>.yaml` gives has the file's name.

    One of the `overrides` may set another name on purpose.
    """
    if part is None:
        raise ValueError(f"{group}={file}: its yaml puts its keys elsewhere: remove its line `# @package`")
    name = file.rpartition("/")[2]
    if part.get("name") != name and not any(text.startswith(f"{group}.name=") for text in overrides):
        raise ValueError(f"{group}={file}: its yaml must have the file's name: write `name: {name}`")
