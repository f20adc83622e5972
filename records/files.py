"""The files of a run: `results_dir/runs/<run_id>/` holds `config.yaml`, `record.json`, `metrics.csv` and `.claim`.

Beside them are the weights that it has kept, a file for each replica and selection.

A results folder may be damaged, or a stranger's. Whatever is in it, reading it raises a `ValueError` that names the
file, and never leaves the folder.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from mixerlab.records.atomic import publish_file, read_bytes, replace_file
from mixerlab.records.identity import run_id
from mixerlab.records.schema import LABELS, LARGEST_NUMBER, labels_of_replicas, rows_digest, validate_record

if TYPE_CHECKING:
    import pandas as pd

RECORD_FILE = "record.json"
CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.csv"

# Bytes. A record has 2 kB for each replica, metrics 200 bytes for each replica and epoch.
LARGEST_RECORD, LARGEST_CONFIG, LARGEST_METRICS = 32 << 20, 1 << 20, 256 << 20
DEEPEST_CONFIG = 30  # levels of nesting
# What is no config fails in many ways while it is taken for one.
NO_CONFIG = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
# The columns of metrics.csv that figures draw.
DRAWN = ("epoch", "replica", "lr", "train_loss", "val_accuracy", "test_accuracy")


def run_folder(results_dir: str | Path, identity: str) -> Path:
    """Where the run with this `run_id` lives."""
    return Path(results_dir) / "runs" / identity


def weights_file(folder: str | Path, replica: int, selection: str) -> Path:
    """Where the weights of a replica at the epoch of a selection are, if they were kept."""
    return Path(folder) / f"replica-{replica}.{selection}.safetensors"


def weights_files(folder: str | Path) -> list[Path]:
    """All weights in a run's folder."""
    return sorted(Path(folder).glob("replica-*.safetensors"))


def selections_without_weights(folder: str | Path, record: Mapping[str, Any], selections: Iterable[str]) -> list[str]:
    """Those of `selections` for which a replica of `record` has an epoch, but no file of weights."""
    return [
        selection
        for selection in selections
        if any(
            row[f"{selection}_epoch"] is not None and not weights_file(folder, row["replica"], selection).exists()
            for row in record["rows"]
        )
    ]


def write_record(folder: str | Path, record: Mapping[str, Any], replaces: bytes | None = None) -> None:
    """Writes `record.json`, with digests of its rows and of `metrics.csv`, whole or not at all.

    Args:
        folder: the run's.
        record: as `schema` describes it.
        replaces: what `record.json` held when this run began (`record_bytes`). None: nothing.

    Raises:
        ValueError: the record breaks the schema (nothing is written).
        FileExistsError: another process has written a record meanwhile, which stays.
        OSError: the disk is full, or the folder cannot be written.
    """
    validate_record(record)
    folder = Path(folder)
    digests = {"rows": rows_digest(record)}
    with suppress(FileNotFoundError):  # a run that failed has none
        digests[METRICS_FILE] = _digest(read_bytes(folder / METRICS_FILE, LARGEST_METRICS))
    text = json.dumps(dict(record) | {"sha256": digests}, indent=1, sort_keys=True, allow_nan=False) + "\n"
    path = folder / RECORD_FILE
    if replaces is None:
        publish_file(path, text)
    elif record_bytes(folder) == replaces:
        replace_file(path, text)
    else:
        raise FileExistsError(f"{path} has changed since this run began")


def write_config(folder: str | Path, config: Mapping[str, Any]) -> None:
    """Writes the resolved config to `config.yaml`, atomically."""
    from omegaconf import OmegaConf  # takes longer to import than a report of few records to read them

    replace_file(Path(folder) / CONFIG_FILE, OmegaConf.to_yaml(OmegaConf.create(dict(config))))


def write_metrics(folder: str | Path, metrics: "pd.DataFrame") -> None:
    """Writes the rows of `metrics.csv` (replica x epoch), atomically.

    Measured values get seven significant digits, as many as float32 has. Learning rates stay as the config gives them.
    """
    as_given = metrics.assign(lr=metrics["lr"].astype(str))
    replace_file(Path(folder) / METRICS_FILE, as_given.to_csv(index=False, float_format="%.7g"))


def record_bytes(folder: str | Path) -> bytes | None:
    """What `record.json` holds, whatever that is; None if there is no such file. `ValueError` if it cannot be read."""
    path = Path(folder) / RECORD_FILE
    try:
        return read_bytes(path, LARGEST_RECORD)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not a record ({error}): delete it") from error


def parse_record(content: bytes) -> dict[str, Any]:
    """The record in the text of a `record.json`, without its digests.

    Raises:
        ValueError: it is no record, or not what was written.
    """
    try:
        record = json.loads(content)
        validate_record(record)
        digests = record.pop("sha256", {})  # records of earlier versions have none
        if digests.get("rows", rows_digest(record)) != rows_digest(record):
            raise ValueError("its rows are not those that were written")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (AttributeError, TypeError) as error:  # another type than the schema's, somewhere inside
        raise ValueError(str(error)) from error
    return record


def read_record(folder: str | Path) -> dict[str, Any] | None:
    """The record in `folder`, None if there is none.

    Raises:
        ValueError: the file is no record, or another run's; says which file and why.
    """
    folder = Path(folder)
    content = record_bytes(folder)
    if content is None:
        return None
    try:
        record = parse_record(content)
        if record["run_id"] != folder.name:
            raise ValueError(f"it is the record of run {record['run_id']}")
    except ValueError as error:
        raise ValueError(f"{folder / RECORD_FILE} is not a record ({error}): delete it") from error
    return record


def is_finished(folder: str | Path) -> bool:
    """Whether the run in `folder` has its result. Raises like `read_record`."""
    record = read_record(folder)
    return record is not None and record["status"] == "finished"


def read_config(folder: str | Path) -> dict[str, Any] | None:
    """The config in `folder`, None if there is none. Interpolations in it stay text.

    Raises:
        ValueError: the file is no config of the run that the folder names; says which file and why.
    """
    folder = Path(folder)
    path = folder / CONFIG_FILE
    try:
        return parse_config(read_bytes(path, LARGEST_CONFIG), folder.name)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not this run's config ({error})") from error


def parse_config(content: bytes, identity: str) -> dict[str, Any]:
    """The config in the text of a `config.yaml`; `ValueError` with the reason if it is none of the run `identity`."""
    try:
        config = _plain_yaml(content)
        check_config(config, identity)
    except (*NO_CONFIG, yaml.YAMLError) as error:
        reason = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise ValueError(" ".join(reason.split())) from error
    return config


def check_config(config: Any, identity: str) -> None:
    """Raises one of `NO_CONFIG` unless this is the config of the run `identity`."""
    if not isinstance(config, dict):
        raise ValueError("it is no mapping")
    for labels in labels_of_replicas(config):
        for column, kind in LABELS.items():
            if type(labels[column]) is not kind:
                raise ValueError(f"{column}={labels[column]!r} must be of type {kind.__name__}")
    if run_id(config) != identity:
        raise ValueError(f"it describes run {run_id(config)}")


def _plain_yaml(content: bytes) -> Any:
    """YAML as `write_config` writes it: no anchors, aliases or tags, and not nested deeply."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text, depth = content.decode(), 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ValueError("it has an anchor or an alias")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEEPEST_CONFIG:
            raise ValueError("it is nested too deeply")
    return yaml.load(text, Loader=loader)


def read_run(results_dir: str | Path, identity: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The record and the config of a run; None for what is not there.

    Raises:
        ValueError: one of them is damaged, they are not of one run, or the folder leads out of `results_dir`.
    """
    folder = run_folder(results_dir, identity)
    if folder.is_symlink():
        raise ValueError(f"{folder} is a link, which is not followed")
    config, record = read_config(folder), read_record(folder)
    if record is None:
        return None, config
    if config is None:
        raise ValueError(f"{folder} has a record, but no {CONFIG_FILE} that says of what")
    if not has_rows_of(record, config):
        raise ValueError(f"{folder / RECORD_FILE} has other rows than its {CONFIG_FILE} describes")
    return record, config


def has_rows_of(record: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether the record has a row for each replica of the config, and no other."""
    expected = labels_of_replicas(config)
    wanted, found = (
        sorted(tuple(row[column] for column in LABELS if column != "replica") for row in rows)
        for rows in (expected, record["rows"])
    )
    return wanted == found and [row["replica"] for row in record["rows"]] == list(range(len(expected)))


def read_metrics(folder: str | Path) -> "pd.DataFrame | None":
    """The rows of `metrics.csv` (replica x epoch), None if there is no such file.

    Raises:
        ValueError: the file is damaged, or not that of the record beside it; says which file and why.
    """
    import pandas as pd

    folder = Path(folder)
    path = folder / METRICS_FILE
    try:
        content = read_bytes(path, LARGEST_METRICS)
        if not is_written_with(content, record_bytes(folder) or b"{}"):
            raise ValueError("it is not the file that was written with the record")
        metrics = pd.read_csv(io.BytesIO(content), dtype=dict.fromkeys(DRAWN, float))
        missing = [column for column in DRAWN if column not in metrics]
        if missing:
            raise ValueError(f"it has no column {', '.join(missing)}")
        if metrics.empty:
            raise ValueError("it has no rows")
        for column in DRAWN:
            values = metrics[column].to_numpy()
            if (abs(values) > LARGEST_NUMBER).any():
                raise ValueError(f"{column} has a number above {LARGEST_NUMBER:g}")
            if column in ("epoch", "replica", "lr") and not (values >= 0).all():  # NaN is not
                raise ValueError(f"{column} has a gap, or a number below 0")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path} cannot be drawn ({' '.join(str(error).split())})") from error
    return metrics


def is_written_with(metrics: bytes, record: bytes) -> bool:
    """Whether the text of a record has the digest of these bytes of a `metrics.csv`; True if it has none."""
    try:
        written = json.loads(record).get("sha256", {}).get(METRICS_FILE)
    except (ValueError, AttributeError, RecursionError):
        return True  # a record that cannot be read, which is said elsewhere
    return written in (None, _digest(metrics))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_writable(results_dir: str | Path, option: str = "results_dir") -> None:
    """Makes `results_dir`; `ValueError` if nothing can be written there, which names the option that gave it."""
    try:
        os.makedirs(results_dir, exist_ok=True)
        with tempfile.TemporaryFile(dir=results_dir):
            pass
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ValueError(
            f"{option}={str(results_dir)!r} cannot be written ({reason}): give a folder of yours with {option}=DIR"
        ) from error
