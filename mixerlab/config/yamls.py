"""Whether a yaml has the name of its file: tables average runs of one name as if they were one thing."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig


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
