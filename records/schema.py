"""What a record says: its columns, the rows of a config, and the check that a record keeps to the schema.

    {"run_id": str, "status": "finished" | "failed", "error": str | null,
     "rows": [one dict per replica: LABELS, "hparams", RESULTS],
     "provenance": {what may differ when the same run is repeated: times, device, versions, commit},
     "sha256": {"rows": of status, error and rows, "metrics.csv": of the file}}

`sha256` is absent from records of earlier versions. Everything outside `provenance` is the same, bit for bit, when the
same config runs again on a CPU in as many threads. Accuracies are in [0, 1], losses in nats, and the first epoch is 0.
A number that does not exist or is not finite is null.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mixerlab.records.identity import (
    DATA_DIGEST,
    DATA_PATH,
    REPLICATED,
    flatten,
    is_volatile,
    replicas_of,
    run_id,
)

# The columns that say which replica a row is, with their types ...
LABELS = {
    "run_id": str,
    "mixer": str,
    "task": str,
    "setting": str,
    "replica": int,
    "lr": float,
    "weight_decay": float,
    "seed": int,
    "optimizer": str,
    "schedule": str,
    "epochs": int,
    "batch_size": int,
}
ACCURACIES = (
    "official_accuracy",
    "official_token_accuracy",
    "clean_accuracy",
    "clean_token_accuracy",
    "clean_val_accuracy",
    "val_accuracy",
    "test_accuracy",
)
LOSSES = ("official_loss", "clean_loss", "clean_val_loss", "train_loss", "val_loss", "test_loss")
COUNTS = ("num_params", "state_size", "steps", "official_epoch", "clean_epoch")
# ... and those that say how it went. `official_*`: at the checkpoint with the lowest test perplexity. `clean_*`:
# at the one with the lowest validation perplexity. Without a prefix: after the last epoch.
RESULTS = ("status", "error", *COUNTS, *ACCURACIES, *LOSSES)
# Later columns, which older records lack. `steps_to_90`: the steps made by the end of the first epoch with a test
# accuracy of at least 0.9; null: there was none.
# `chance`: the accuracy on test of a uniform guess (`Task.chance`); null: not known.
LATER_RESULTS = ("steps_to_90", "chance")
ROW_STATUSES = ("finished", "diverged", "failed")
RECORD_STATUSES = ("finished", "failed")

# Of a loss or a count. The largest float32 is 3.4e38.
LARGEST_NUMBER = 1e39
LONGEST_NAME = 1000  # characters of a label; a setting of one's own lists its parameters

_MISSING = object()


def row_labels(config: Mapping[str, Any], replica: int, lr: float, seed: int) -> dict[str, Any]:
    """The part of a row that the config knows: `LABELS` and `hparams` (all other keys, dotted)."""
    return _labels_but(config) | {"replica": replica, "lr": float(lr), "seed": seed}


def labels_of_replicas(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`row_labels` of each replica of a config, which costs little more than those of one."""
    shared = _labels_but(config)
    return [
        shared | {"replica": replica, "lr": float(lr), "seed": seed, "hparams": dict(shared["hparams"])}
        for replica, (lr, seed) in enumerate(replicas_of(config))
    ]


def _labels_but(config: Mapping[str, Any]) -> dict[str, Any]:
    """What `row_labels` gives, with no replica in its place."""
    taken = {"optimizer.weight_decay", "trainer.epochs", "trainer.batch_size", *REPLICATED}
    groups = ("mixer", "task", "model", "optimizer", "schedule", "trainer")
    hparams = {
        key: value
        for key, value in flatten({group: config[group] for group in groups if group in config}).items()
        if not is_volatile(key) and key not in taken and not key.endswith((".name", "._target_"))
    }
    if DATA_DIGEST in hparams:  # which says more than where the data lay
        hparams.pop(DATA_PATH, None)
    return {
        "run_id": run_id(config),
        "mixer": config["mixer"]["name"],
        "task": config["task"]["name"],
        "setting": config["task"]["setting"],
        "replica": None,
        "lr": None,
        "weight_decay": float(config["optimizer"].get("weight_decay", 0.0)),  # an optimizer may have none
        "seed": None,
        "optimizer": config["optimizer"]["name"],
        "schedule": config["schedule"]["name"],
        "epochs": config["trainer"]["epochs"],
        "batch_size": config["trainer"]["batch_size"],
        "hparams": hparams,
    }


def failed_record(config: Mapping[str, Any], error: str, provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run that raised: one failed row for each learning rate and seed, without results."""
    nothing = dict.fromkeys((*RESULTS, *LATER_RESULTS)) | {"status": "failed", "error": error}
    rows = [labels | nothing for labels in labels_of_replicas(config)]
    return {
        "run_id": run_id(config),
        "status": "failed",
        "error": error,
        "rows": rows,
        "provenance": dict(provenance),
    }


def rows_digest(record: Mapping[str, Any]) -> str:
    """SHA-256 of what a record says besides its provenance."""
    said = [record[key] for key in ("run_id", "status", "error", "rows")]
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def validate_record(record: Mapping[str, Any]) -> None:
    """Raises `ValueError` with the row, the column and the value where a record breaks the schema.

    A record from a stranger may raise `TypeError` or `AttributeError` instead: a value has another type.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"the record is of type {type(record).__name__}, and must be a mapping")
    _check_keys(record, ("run_id", "status", "error", "rows", "provenance"), "the record", ("sha256",))
    if record["status"] not in RECORD_STATUSES:
        raise ValueError(f"record status={_shown(record['status'])}: must be one of {', '.join(RECORD_STATUSES)}")
    _check_error(record, "the record")
    for key, kind in (("rows", list | tuple), ("provenance", Mapping), ("sha256", Mapping)):
        if key in record and not isinstance(record[key], kind):
            raise ValueError(f"{key}={_shown(record[key])} is of another type")
    if not record["rows"]:
        raise ValueError("the record has no rows: it needs one per replica, failed ones included")
    for number, row in enumerate(record["rows"]):
        _validate_row(row, f"row {number}")
        if row["run_id"] != record["run_id"]:
            raise ValueError(f"row {number}: run_id={_shown(row['run_id'])} is not the record's {record['run_id']!r}")
    # They become columns beside those of the rows.
    taken = [key for key in record["provenance"] if key in (*LABELS, *RESULTS, *LATER_RESULTS, "config")]
    if taken:
        raise ValueError(f"provenance: {', '.join(taken)} is a column of the rows")


def check_name(key: str, value: Any) -> None:
    """Raises `ValueError` unless `value` can name a row, a column and a curve."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}={_shown(value)} must be a name: a string that is not empty")
    if not value.isprintable() or len(value) > LONGEST_NAME:
        raise ValueError(f"{key}={_shown(value)} must be one printable line of at most {LONGEST_NAME} characters")


def _validate_row(row: Mapping[str, Any], where: str) -> None:
    if not isinstance(row, Mapping):
        raise ValueError(f"{where} is of type {type(row).__name__}, and must be a mapping")
    _check_keys(row, (*LABELS, "hparams", *RESULTS), where, LATER_RESULTS)
    for column, kind in LABELS.items():
        wanted = (int, float) if kind is float else kind
        if not isinstance(row[column], wanted) or isinstance(row[column], bool):
            raise ValueError(f"{where}: {column}={_shown(row[column])} must be of type {kind.__name__}")
        if kind is str:
            check_name(f"{where}: {column}", row[column])
        elif not 0 <= row[column] <= LARGEST_NUMBER:
            raise ValueError(f"{where}: {column}={_shown(row[column])} must lie in [0, {LARGEST_NUMBER:g}]")
    if not isinstance(row["hparams"], Mapping) or not all("." in key for key in row["hparams"]):
        raise ValueError(f"{where}: hparams={_shown(row['hparams'])} must be a mapping of dotted keys")
    if row["status"] not in ROW_STATUSES:
        raise ValueError(f"{where}: status={_shown(row['status'])} must be one of {', '.join(ROW_STATUSES)}")
    _check_error(row, where)
    for column in (*COUNTS, *ACCURACIES, *LOSSES, *LATER_RESULTS):
        value = row.get(column)
        if value is None:
            if row["status"] == "finished" and column not in LATER_RESULTS:
                raise ValueError(f"{where}: {column} is null, but the replica finished")
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where}: {column}={_shown(value)} must be a finite number or null")
        if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:  # neither is NaN
            raise ValueError(f"{where}: {column}={_shown(value)} must be a finite number or null")
        if column in ACCURACIES and not 0 <= value <= 1:
            raise ValueError(f"{where}: {column}={_shown(value)} must lie in [0, 1]")


def _check_error(mapping: Mapping[str, Any], where: str) -> None:
    if mapping["error"] is not None and not isinstance(mapping["error"], str):
        raise ValueError(f"{where}: error={_shown(mapping['error'])} must be a string or null")
    if mapping["status"] == "failed" and not mapping["error"]:
        raise ValueError(f"{where}: a failed record or replica must say why in 'error'")


def _shown(value: Any, most: int = 80) -> str:
    """`repr` of a value that may be a stranger's: short, and never an error."""
    if isinstance(value, int) and abs(value) > 1e15:
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[:most]}..."


def _check_keys(
    mapping: Mapping[str, Any], wanted: tuple[str, ...], where: str, optional: tuple[str, ...] = ()
) -> None:
    missing = [key for key in wanted if mapping.get(key, _MISSING) is _MISSING]
    unknown = [key for key in mapping if key not in (*wanted, *optional)]
    if missing or unknown:
        raise ValueError(f"{where}: missing keys {missing}, unknown keys {unknown}")


def changed_code(record: Mapping[str, Any], code: Mapping[str, str]) -> list[str]:
    """The parts of a run (`mixer`, `task`, `training`) whose code differs from the code that made `record`.

    Parts for which the record has no version count as unchanged.
    """
    made_by = record["provenance"].get("code_version", {})
    if not isinstance(made_by, Mapping):
        return []
    return [part for part, version in code.items() if made_by.get(part, version) != version]
