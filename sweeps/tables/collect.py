"""From the records of a results folder, an archive or a `rows.csv` to a frame: one row per replica."""

import hashlib
import json
import logging
import lzma
import math
import re
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, cast

import pandas as pd

from mixerlab.records.best import ENDED
from mixerlab.records.errors import reason
from mixerlab.records.files import Unreadable, read_config, read_metrics, read_run, reading, run_folder
from mixerlab.records.identity import canonical_value, flatten, present
from mixerlab.records.schema import CHOICES, LABELS, Score, labels_of_replicas, result_columns
from mixerlab.sweeps.tables.swept import only_where

log = logging.getLogger(__name__)

# Columns that a row has beside its labels, whatever its results are.
LEADING = (*LABELS, "status", "error", "score", "higher_is_better", "config")
_ARCHIVED = re.compile(r"runs/[0-9a-f]{12}/(config\.yaml|metrics\.csv|record\.json)$")
# Text also where it looks like a number: a mixer may be called 1e3, a hash may be 1234e567.
_TEXTS = {*(name for name, kind in LABELS.items() if kind is str), "status", "error", "score", "config"}


def collect(
    source: str | Path,
    configs: Mapping[str, Mapping[str, Any]] | None = None,
    more: Sequence[str | Path] = (),
) -> pd.DataFrame:
    """One row per replica of every run in a results folder or archive, or of those in `configs`, which are by `run_id`.

    The runs of `more` of them join: a run that is in several counts once, in the first where it is finished. A warning
    names what is left out, unless it is a copy.

    Columns: the labels and results of a record's rows, the name of its `score` and whether `higher_is_better`, `config`
    (a hash of all hyperparameters but learning rate and seed), every hyperparameter and every entry of the provenance
    under its dotted name. If runs of several classes share the name of a mixer, task, optimizer or schedule, there is a
    column such as `mixer._target_`.

    Besides the statuses of a record, a row may be `unfinished` (there is a config but no record: it runs, or was
    killed), `unreadable` (the error names the folder) or `missing` (one of `configs` has left nothing that can be
    read). A damaged run is an unreadable row with the error and no labels, and, if its config can be read, one with
    labels and no error for each replica. Losses in nats, accuracies in [0, 1]. `steps_to_90` is inf for a replica that
    never got there.

    ValueError if a folder holds no `runs`, or a file is no archive.
    """
    runs, left_out = dict[str, list[dict[str, Any]]](), list[str]()
    for one in (source, *more):
        with unpacked(one) as results:
            if configs is None and not Path(results, "runs").is_dir():
                raise ValueError(f"{one} is no archive and no folder with runs/: name one or, for tables, a rows.csv")
            for folder in sorted(Path(results).glob("runs/*/")):
                if configs is None or folder.name in configs:
                    own, earlier = _read(folder, Path(one)), runs.get(folder.name, [])
                    if not earlier or (_is_finished(own) and not _is_finished(earlier)):
                        runs[folder.name] = own
                    elif _is_finished(own) and own != earlier:
                        left_out.append(f"{folder.name} of {one}")
    if left_out:
        log.warning("left out, as an earlier source has another training of the same run: %s", ", ".join(left_out))
    rows = [row for own in runs.values() for row in own]
    known = {row["run_id"] for row in rows if "mixer" in row}
    for identity, config in (configs or {}).items():
        if identity not in known:
            rows += _without_record(config, "missing")
    names = {key for row in rows for key in row} - set(LEADING)
    frame = pd.DataFrame(rows, columns=[*LEADING, *sorted(names, key=lambda key: ("." in key, key))])
    for part in CHOICES:
        target = f"{part}._target_"
        if target in frame and (frame.groupby(part)[target].nunique() < 2).all():
            frame = frame.drop(columns=target)
    return frame


def _is_finished(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["status"] == "finished" for row in rows)


def _read(folder: Path, source: Path) -> list[dict[str, Any]]:
    """The rows of one run. Whatever is wrong with it costs this run and one line, which names the source."""
    try:
        record, config = read_run(folder)
    except Unreadable as error:
        told = str(error).replace(str(folder.parents[1]), str(source))
        rows = [{"run_id": folder.name, "status": "unreadable", "error": told}]
        with suppress(Unreadable):
            config = read_config(folder)
            rows += [] if config is None else _without_record(config, "unreadable")
        return rows
    if record is None:
        return [] if config is None else _without_record(config, "unfinished")
    shared = {"score": record.score.name, "higher_is_better": record.score.higher_is_better}
    shared |= {key: _scalar(value) for key, value in flatten(record.provenance).items()}
    classes = _classes(config or {})
    return [_tidy(row, classes) | shared for row in record.rows]


def _without_record(config: Mapping[str, Any], status: str) -> list[dict[str, Any]]:
    """A row for each replica of a run of which there is no more than the config."""
    classes, unknown = _classes(config), {"replica": None, "status": status}
    return [_tidy(labels, classes) | unknown for labels in labels_of_replicas(config)]


def _tidy(row: Mapping[str, Any], classes: Mapping[str, str | None]) -> dict[str, Any]:
    """A record's row, flat, with its classes and the hash of its configuration."""
    told = {key: row[key] for key in ("weight_decay", "optimizer", "schedule", "epochs", "batch_size")}
    told |= {**row["hparams"], **classes}
    canonical = {key: canonical_value(value, key) for key, value in present(told).items()}
    digest = hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:8]
    flat = {key: value for key, value in row.items() if key != "hparams"}
    if flat.get("steps_to_90", 0) is None and flat["status"] != "failed":
        flat["steps_to_90"] = math.inf
    hparams = {key: _scalar(canonical_value(value, key)) for key, value in row["hparams"].items()}
    return {**flat, **classes, **hparams, "config": digest}


def _classes(config: Mapping[str, Any]) -> dict[str, str | None]:
    """The class of each part of a run; of a hybrid those of its layers."""
    found = {}
    for part in CHOICES:
        keys = flatten({part: config.get(part)})
        named = sorted(key.removesuffix(".name") for key in keys if key.endswith(".name"))
        targets = [str(keys[f"{name}._target_"]) for name in named if f"{name}._target_" in keys]
        found[f"{part}._target_"] = " + ".join(targets) or None
    return found


def _scalar(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def curves(source: str | Path = "results", where: Collection[str] = ()) -> pd.DataFrame:
    """The training curves of the runs that have ended: one row per replica and epoch.

    Columns: the labels of a record's rows, `config` (a hash of the other hyperparameters), `epoch` from 0, and those of
    `metrics.csv`: losses in nats, scores as the record's. `attrs["notes"]` names the curves that cannot be read.

    Args:
        source: a results folder, or an archive of records; ValueError if there is none, or no curve in it.
        where: only records that meet every `KEY=VALUE`, as for `mixerlab.table`.
    """
    found, notes = [], []
    with unpacked(source) as folder:
        frame = only_where(collect(source), where)
        rows = frame.loc[frame["status"].isin(ENDED), [*LABELS, "config"]].astype({"replica": int, "seed": int})
        for identity, own in rows.groupby("run_id", sort=False):
            try:
                metrics = read_metrics(run_folder(folder, str(identity)))
            except Unreadable as error:
                notes.append(f"unreadable: {error}".replace(str(folder), str(Path(source))))
                continue
            if metrics is not None:
                new = [name for name in metrics if name not in LABELS]
                found.append(own.merge(metrics[["replica", *new]], on="replica"))
    if not found:
        raise ValueError("; ".join([f"{source} has no training curves", *notes]))
    made = pd.concat(found, ignore_index=True)
    made.attrs["notes"] = notes
    return made


@contextmanager
def unpacked(source: str | Path) -> Iterator[Path]:
    """The results folder that a source is or, as long as the context lasts, holds as a .tar.xz of records."""
    if Path(source).is_file() and Path(source).suffix != ".csv":
        with tempfile.TemporaryDirectory() as folder:
            with reading(source):
                _unpack(source, folder)
            yield Path(folder)
    else:
        yield Path(source)


def _unpack(source: str | Path, folder: str) -> None:
    try:
        with tarfile.open(source, "r:xz") as archive:
            for member in archive:
                if member.isfile() and (found := _ARCHIVED.search(member.name)):
                    path = Path(folder, found[0])
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(cast(IO[bytes], archive.extractfile(member)).read())
    except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
        raise ValueError(f"it is no .tar.xz of records, or it is cut short: {error}") from error


def rows_of(source: str | Path, *more: str | Path) -> pd.DataFrame:
    """The rows of `collect`, from an archive, a results folder or a report's `rows.csv`; `ValueError` if it is none.

    Several archives or results folders are one.
    """
    if csv := [each for each in (source, *more) if Path(each).suffix == ".csv"]:
        if more:
            raise ValueError(f"{csv[0]}: a rows.csv stands alone; join results folders or archives")
        frame = read_rows(source)
    else:
        frame = collect(source, more=more)
    if frame.empty:
        raise ValueError(f"{source} holds no runs: give an archive of records, a results folder or a rows.csv")
    return frame


def read_rows(path: str | Path) -> pd.DataFrame:
    """The `rows.csv` of a report as `collect` gave it."""
    try:
        # Only what is empty is missing: a mixer may be called NA.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
        scores = [Score(name) for name in frame.get("score", pd.Series()).dropna().unique()]
        needed = {*LEADING, *(f"{place}_{score.name}" for place in ("official", "clean_val") for score in scores)}
        if missing := sorted(needed - set(frame)):
            raise ValueError(f"it has no {', '.join(missing)}")
        numbers = {*LABELS, *(name for score in scores for name in result_columns(score))} - _TEXTS

        def read(name: Any, own: pd.Series) -> pd.Series:
            if name in _TEXTS:
                return own
            return pd.to_numeric(own) if name in numbers else own.map(_value, na_action="ignore")

        return pd.DataFrame({name: read(name, own) for name, own in frame.items()})  # at once: else it is fragmented
    except Exception as error:
        raise ValueError(f"{path} cannot be read as the rows.csv of a report ({reason(error)})") from error


@cache
def _value(text: str) -> Any:
    """What pandas has written so: a number or a bool, or text that looks like one, such as `1e3`."""
    for kind in (int, float):
        with suppress(ValueError):
            if str(kind(text)) == text:
                return kind(text)
    return {"True": True, "False": False}.get(text, text)
