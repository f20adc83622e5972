"""The runs of a sweep under its name: `results_dir/sweeps/NAME/`, which `mixerlab report --sweep NAME` reads.

A run does not know its sweep, since several may share it. A sweep that takes a name again adds a note to it. A note
holds the config of each run, so that a report can tell what a run was that has been deleted.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mixerlab.records.atomic import replace_file
from mixerlab.records.files import check_config, reading

Configs = Mapping[str, Mapping[str, Any]]  # of runs, by `run_id`

LONGEST_NAME = 100  # characters
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")


def check_sweep_name(name: object) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(f"sweep={name!r} must be a name of letters, digits, '.', '_' and '-', or null")


def name_of(run_ids: Iterable[str]) -> str:
    """A name for a sweep that was given none. Deterministic: the same runs always get the same name."""
    return hashlib.sha256(" ".join(sorted(run_ids)).encode()).hexdigest()[:8]


def name_from(experiment: str) -> str:
    """A sweep's name made of an experiment's: `a-b` for `a/b`; empty if nothing of it can be part of one."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", experiment).lstrip("._-")[:LONGEST_NAME]


def write_sweep(results_dir: str | Path, name: str, configs: Configs) -> None:
    """Notes these runs under `name`, beside those that are there."""
    path = _folder(results_dir, name) / f"{name_of(configs)}.json"
    replace_file(path, json.dumps({"runs": configs}) + "\n")


def read_sweep(results_dir: str | Path, name: str) -> Configs:
    folder = _folder(results_dir, name)
    if not folder.is_dir():
        names = ", ".join(sorted(other.name for other in folder.parent.glob("*"))) or "none"
        raise ValueError(f"--sweep {name}: no sweep has this name in {folder.parent}; there are {names}")
    configs: dict[str, Mapping[str, Any]] = {}
    for path in sorted(folder.glob("[!.]*.json")):
        with reading(path):
            own = json.loads(path.read_bytes())["runs"]
            for identity, config in own.items():
                check_config(config, identity)
        configs |= own
    return configs


def sweep_report(results_dir: str | Path, name: str) -> Path:
    return _folder(results_dir, name) / "report"


def _folder(results_dir: str | Path, name: str) -> Path:
    check_sweep_name(name)
    return Path(results_dir) / "sweeps" / name
