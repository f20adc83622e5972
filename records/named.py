"""The runs of a sweep under its name: `results_dir/sweeps/NAME.json`, which `mixerlab report --sweep NAME` reads.

A run does not know its sweep, since several may share it. A sweep that takes a name again adds its runs to it. The note
holds the config of each run, so that a report can tell what a run was that has been deleted.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mixerlab.records.atomic import read_bytes, remove_leftovers, replace_file
from mixerlab.records.claims import claim, holder
from mixerlab.records.files import check_config, reading

Configs = Mapping[str, Mapping[str, Any]]  # of runs, by `run_id`

LONGEST_NAME = 100  # characters
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
PATIENCE = 60.0  # seconds that a sweep waits for another one to note its runs
LARGEST_NOTE = 64 << 20  # bytes; a run has some three thousand


def check_sweep_name(name: object) -> None:
    """`ValueError` unless this can name a sweep and its file."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValueError(f"sweep={name!r} must be a name of letters, digits, '.', '_' and '-', or null")


def name_of(run_ids: Iterable[str]) -> str:
    """A name for a sweep that was given none. Deterministic: the same runs always get the same name."""
    return hashlib.sha256(" ".join(sorted(run_ids)).encode()).hexdigest()[:8]


def name_from(experiment: str) -> str:
    """A sweep's name made of an experiment's: `a-b` for `a/b`; empty if nothing of it can be part of one."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", experiment).lstrip("._-")[:LONGEST_NAME]


def write_sweep(results_dir: str | Path, name: str, configs: Configs) -> None:
    """Notes these runs under `name`, beside those that are there.

    Raises:
        ValueError: `name` cannot name a sweep, what is there under this name cannot be read, or another process has
            been writing there for a minute.
        OSError: the disk is full, or the folder cannot be written.
    """
    check_sweep_name(name)
    path = _path(results_dir, name)
    with claim(path.parent, patience=PATIENCE) as alone:
        if not alone:
            raise ValueError(f"{path.parent} is being written by {holder(path.parent)}: try again")
        remove_leftovers(path.parent)
        known = read_sweep(results_dir, name) if path.exists() else {}
        replace_file(path, json.dumps({"runs": {**known, **configs}}) + "\n")


def read_sweep(results_dir: str | Path, name: str) -> Configs:
    """The runs of a sweep.

    Raises:
        ValueError: there is none of this name, which says what there is; or its file is damaged.
    """
    check_sweep_name(name)
    path = _path(results_dir, name)
    if not path.exists():
        names = ", ".join(sorted(other.stem for other in path.parent.glob("[!.]*.json"))) or "none"
        raise ValueError(f"--sweep {name}: no sweep has this name in {path.parent}; there are {names}")
    with reading(path):
        configs = json.loads(read_bytes(path, most=LARGEST_NOTE))["runs"]
        for identity, config in configs.items():
            check_config(config, identity)
    return configs


def _path(results_dir: str | Path, name: str) -> Path:
    return Path(results_dir) / "sweeps" / f"{name}.json"
