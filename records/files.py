"""The files of a run: `results_dir/runs/<run_id>/` holds `config.yaml`, `record.json`, `metrics.csv` and `.claim`.

Beside them are the weights that it has kept, a file for each replica and selection. Where a run that has results trains
once more, they stay until that is whole; then the record goes first, and the new one comes last.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from mixerlab.records.atomic import replace_file
from mixerlab.records.errors import reason
from mixerlab.records.identity import run_id
from mixerlab.records.schema import LABELS, Record, changed_code, labels_of_replicas, rows_digest
from mixerlab.records.text import one_line

if TYPE_CHECKING:
    import pandas as pd

RECORD_FILE = "record.json"
CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.csv"
ERROR_FILE = "error.txt"  # the traceback of a run that failed, beside its record


class Unreadable(ValueError):
    """A file of a run cannot be read; the message is one line that names it."""


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Within the block, whatever is raised becomes `Unreadable`, which names `path` unless it names a file already."""
    try:
        yield
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(one_line(f"{path} cannot be read ({reason(error)})")) from error


def run_folder(results_dir: str | Path, identity: str) -> Path:
    """Where the run with this `run_id` lives."""
    return Path(results_dir) / "runs" / identity


def weights_file(folder: str | Path, replica: int, moment: str) -> Path:
    """Where the weights of a replica are, if they were kept: at the epoch of a selection, or those of `snapshot(5)`."""
    return Path(folder) / f"replica-{replica}.{moment}.safetensors"


def snapshot(epochs: int) -> str:
    """What the weights after so many epochs are called."""
    return f"epoch-{epochs}"


def weights_files(folder: str | Path) -> list[Path]:
    return sorted(Path(folder).glob("replica-*.safetensors"))


def forget(folder: Path) -> None:
    """Removes what training in `folder` could go on from."""
    for path in folder.glob("resume-*"):
        path.unlink(missing_ok=True)


def write_record(folder: str | Path, record: Record) -> None:
    """Writes `record.json`, with digests of its rows and of `metrics.csv`."""
    folder = Path(folder)
    digests = {"rows": rows_digest(record)}
    if (folder / METRICS_FILE).exists():  # a run that failed has none
        digests[METRICS_FILE] = _digest((folder / METRICS_FILE).read_bytes())
    text = json.dumps(asdict(record) | {"sha256": digests}, indent=1, sort_keys=True, allow_nan=False) + "\n"
    replace_file(folder / RECORD_FILE, text)


def write_config(folder: str | Path, config: Mapping[str, Any]) -> None:
    from omegaconf import OmegaConf  # takes longer to import than a report of few records to read them

    replace_file(Path(folder) / CONFIG_FILE, OmegaConf.to_yaml(OmegaConf.create(dict(config))))


def write_metrics(folder: str | Path, metrics: "pd.DataFrame") -> None:
    """Writes rows (replica x epoch) with seven digits, as many as float32 has; rates stay as the config gives them."""
    as_given = metrics.assign(lr=metrics["lr"].astype(str))
    replace_file(Path(folder) / METRICS_FILE, as_given.to_csv(index=False, float_format="%.7g"))


def _bytes(path: Path) -> bytes | None:
    """The content of a file of a run, None if there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_record(folder: str | Path) -> Record | None:
    """The record in `folder`, None if there is none; `Unreadable` if it is no record, or another run's."""
    path = Path(folder) / RECORD_FILE
    with reading(path):
        if (content := _bytes(path)) is None:
            return None
        record = Record.from_json(json.loads(content))
        if record.run_id != path.parent.name:
            raise ValueError(f"it is the record of run {record.run_id}")
        return record


def kept_record(folder: Path, force: bool | Literal["changed"], code: Mapping[str, str]) -> Record | None:
    """A run's record, if a command with this `force` leaves it as it is; None if the run is to train.

    `changed` repeats a finished run whose record was made by other code than `code` (`changed_code`). Raises
    `Unreadable`.
    """
    try:
        record = None if force is True else read_record(folder)
    except Unreadable as error:
        if isinstance(error.__cause__, OSError):  # it may be whole
            raise
        raise Unreadable(f"{error}; force=true trains the run once more") from error
    if record is None or record.status != "finished" or (force == "changed" and changed_code(record, code)):
        return None
    return record


def has_results(folder: Path) -> bool:
    """Whether the run in `folder` has a record that stays until a training is whole: a finished one."""
    try:
        record = read_record(folder)
    except Unreadable:
        return True  # perhaps
    return record is not None and record.status == "finished"


def read_config(folder: str | Path) -> dict[str, Any] | None:
    """The config in `folder`, None if there is none. Interpolations in it stay text."""
    path = Path(folder) / CONFIG_FILE
    with reading(path):
        if (content := _bytes(path)) is None:
            return None
        config = yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        check_config(config, path.parent.name)
        return config


def check_config(config: Any, identity: str) -> None:
    """Raises whatever is wrong unless this is the config of the run `identity`."""
    if run_id(config) != identity:
        raise ValueError(f"it describes run {run_id(config)}")


def read_run(folder: str | Path) -> tuple[Record | None, dict[str, Any] | None]:
    """The record and the config of a run; None for what is not there."""
    with reading(folder):
        config, record = read_config(folder), read_record(folder)
        if record is not None:
            if config is None:
                raise ValueError(f"it has a record, but no {CONFIG_FILE} that says of what")
            columns = (*LABELS, "hparams")
            if [{column: row[column] for column in columns} for row in record.rows] != labels_of_replicas(config):
                raise ValueError(f"{RECORD_FILE} has other rows than {CONFIG_FILE} describes")
    return record, config


def read_metrics(folder: str | Path) -> "pd.DataFrame | None":
    """The rows of `metrics.csv` (replica x epoch), None if there is no such file."""
    import pandas as pd

    path = Path(folder) / METRICS_FILE
    with reading(path):
        content, record = _bytes(path), _bytes(path.with_name(RECORD_FILE))
        if content is None:
            return None
        if record is not None and json.loads(record)["sha256"].get(METRICS_FILE) != _digest(content):
            raise ValueError("it is not the file that was written with the record")
        return pd.read_csv(io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_writable(results_dir: str | Path, option: str = "results_dir") -> None:
    """Makes `results_dir`; `ValueError` if nothing can be written there, which names the option that gave it."""
    try:
        os.makedirs(results_dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=results_dir, buffering=0) as file:
            file.write(b"0")  # on a full disk, files can be made and stay empty
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        where = f"{option}={str(results_dir)!r} cannot be written ({reason(error)})"
        raise ValueError(f"{where}: give a folder of yours with {option}=DIR") from error
