"""From the records of a results folder to tidy frames: one row per replica, then one row per cell."""

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from mixerlab.records.best import CHOSEN_BY, ENDED, Selection, best_trial
from mixerlab.records.files import RECORD_FILE, read_config, read_metrics, read_run, run_folder
from mixerlab.records.identity import canonical_value, flatten, present
from mixerlab.records.names import MIXERS, TASKS, rank, setting_rank
from mixerlab.records.schema import LABELS, RESULTS, labels_of_replicas
from mixerlab.sweeps.tables.chance import chance_of
from mixerlab.sweeps.tables.grids import grids
from mixerlab.sweeps.tables.solved import counts, known_steps, steps_in

Cell = tuple[str, str, str]  # mixer, task, setting
Row = dict[str, Any]

# What is reported of the best learning rate.
REPORTED = {"official": "official_accuracy", "clean": "clean_accuracy"}

LONGEST_REASON = 500  # characters of an error in a table's notes
# Beside the keys of model, optimizer and schedule: what mixers must have in common to be compared.
ALIKE = ("optimizer", "schedule", "weight_decay", "epochs", "batch_size")
MACHINE = ("precision", "device")  # where runs trained, from the provenance: a config may leave it open
# Parts of a run that have a name and a class. The class is no part of a record's rows.
CLASSED = ("mixer", "task", "optimizer", "schedule")

CELL_COLUMNS = (
    "mixer",
    "task",
    "setting",
    "status",
    "accuracy",
    "chosen_by",
    "std",
    "n",
    "token_accuracy",
    "loss",
    "lr",
    "rates",
    "edge",
    "lacking",
    "added",
    "config",
    "configs",
    "diverged",
    "lost",
    "seeds",
    "num_params",
    "state_size",
    "by_seed",
    "replicas",
    "solved",
    "known",
    "solved_by_seed",
    "steps_to_90",
    "chance",
)


def check_results_dir(path: str | Path) -> None:
    """ValueError if there is no such folder, or if it is the folder `runs` of a results folder."""
    if not Path(path).is_dir():
        raise ValueError(f"there is no folder {path}: name a results folder")
    if not (Path(path) / "runs").exists() and any(Path(path).glob(f"*/{RECORD_FILE}")):
        raise ValueError(f"{path} holds the runs of a results folder: name that folder, {Path(path).absolute().parent}")


def collect(results_dir: str | Path, configs: Mapping[str, Mapping[str, Any]] | None = None) -> pd.DataFrame:
    """One row per replica of every run in `results_dir`, or of those in `configs`, which are by `run_id`.

    Columns: `LABELS`, `RESULTS`, `config` (a hash of all hyperparameters but learning rate and seed), every
    hyperparameter and every entry of the provenance under its dotted name. If runs of several classes share the name of
    a mixer, task, optimizer or schedule, the class is part of `config` and has a column such as `mixer._target_`.
    Besides the statuses of a record, a row may be `unfinished` (there is a config but no record: it runs, or was
    killed), `unreadable` (the error names the file) or `missing` (one of `configs` has left nothing that can be read).
    A damaged run is an unreadable row with the error and no labels, and, if its config can be read, one with labels and
    no error for each replica. A damaged `metrics.csv` is an unreadable row beside those of its record. Losses in nats,
    accuracies in [0, 1]. `steps_to_90` is inf for a replica that never got there, and NaN if that is not known.

    Raises:
        ValueError: there is no such folder, or it is the folder `runs` of one.
    """
    if configs is None:
        check_results_dir(results_dir)
    rows: list[dict[str, Any]] = []
    for folder in sorted(Path(results_dir).glob("runs/*/")):
        if configs is None or folder.name in configs:
            found = None
            try:
                found = _rows_of(results_dir, folder.name)
                rows += found
                metrics = read_metrics(folder)
                older = [row for row in found if math.isnan(row.get("steps_to_90") or 0)]
                if metrics is not None and older:
                    steps = steps_in(metrics, [row["replica"] for row in older])
                    for row in older:
                        row["steps_to_90"] = steps[row["replica"]]
            except (ValueError, OSError, RecursionError) as error:
                reason = " ".join(str(error).split())[:LONGEST_REASON]
                rows.append({"run_id": folder.name, "status": "unreadable", "error": reason})
                if found is None:
                    rows += _labelled(results_dir, folder.name)
    known = {row["run_id"] for row in rows if "mixer" in row}
    for identity, config in (configs or {}).items():
        if identity not in known:
            rows += _without_record(config, "missing")
    _part_classes(rows)
    return pd.DataFrame(rows, columns=_columns(rows))


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    fixed = [*LABELS, *RESULTS, "score", "higher_is_better", "config"]
    return fixed + sorted({key for row in rows for key in row} - set(fixed))


def _rows_of(results_dir: str | Path, identity: str) -> list[dict[str, Any]]:
    record, config = read_run(results_dir, identity)
    if record is not None:
        origin = {key: _scalar(value) for key, value in flatten(record.provenance).items()}
        origin |= {"score": record.score.name, "higher_is_better": record.score.higher_is_better}
        rows = [row if row["status"] == "failed" else row | {"steps_to_90": known_steps(row)} for row in record.rows]
        classes = _classes(config or {})
        return [_tidy(row, classes) | origin for row in rows]
    return [] if config is None else _without_record(config, "unfinished")


def _without_record(config: Mapping[str, Any], status: str) -> list[dict[str, Any]]:
    """A row for each replica of a run of which there is no more than the config."""
    told, classes = {"replica": None, "status": status}, _classes(config)
    return [_tidy(labels, classes) | told for labels in labels_of_replicas(config)]


def _labelled(results_dir: str | Path, identity: str) -> list[dict[str, Any]]:
    """A row for each replica of a run whose record is damaged, none if its config is as well."""
    try:
        config = None if (folder := run_folder(results_dir, identity)).is_symlink() else read_config(folder)
    except (ValueError, OSError, RecursionError):
        return []
    return [] if config is None else _without_record(config, "unreadable")


def _tidy(row: Mapping[str, Any], classes: Mapping[str, str | None]) -> dict[str, Any]:
    """A record's row, flat, with its classes and the hash of its configuration."""
    shared = ("weight_decay", "optimizer", "schedule", "epochs", "batch_size")
    hparams = {key: canonical_value(value, key) for key, value in row["hparams"].items()}
    told = {key: value for key, value in present({**hparams, **classes}).items() if key not in classes}
    identity = json.dumps([[canonical_value(row[key], key) for key in shared], told], sort_keys=True)
    flat = {key: value for key, value in row.items() if key != "hparams"}
    flat["config"] = _hash(identity)
    return {**flat, **classes, **{key: _scalar(value) for key, value in row["hparams"].items()}}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _classes(config: Mapping[str, Any]) -> dict[str, str | None]:
    """The class of each part of a run; of a hybrid those of its layers. Older records name ours without `mixerlab.`."""
    found = {}
    for part in CLASSED:
        keys = sorted(flatten({part: config.get(part)}).items())
        targets = [str(target).removeprefix("mixerlab.") for key, target in keys if key.endswith("._target_")]
        found[f"{part}._target_"] = " + ".join(targets) or None
    return found


def _part_classes(rows: Iterable[dict[str, Any]]) -> None:
    """Makes the class part of `config` where several share a name, and leaves it out of the rows elsewhere."""
    sharing = defaultdict[tuple[str, str], set[str]](set)
    for row in rows:
        for part in CLASSED:
            if (target := row.get(f"{part}._target_")) is not None:
                sharing[part, row[part]].add(target)
    for row in rows:
        for part in CLASSED:
            target = row.pop(f"{part}._target_", None)
            if target is not None and len(sharing[part, row[part]]) > 1:
                row |= {f"{part}._target_": target, "config": _hash(f"{row['config']} {target}")}


def _scalar(value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= 2**63:  # none that a column of numbers holds
        return str(value)
    return json.dumps(value) if isinstance(value, list | dict) else value


def best_per_cell(
    frame: pd.DataFrame,
    selection: Selection = "official",
    all_known: bool = False,
) -> pd.DataFrame:
    """One row per (mixer, task, setting): what the best learning rate reached.

    Every mixer stands against every (task, setting) that any of them has.

    The best learning rate is that of `sweeps.best.best_trial`. A diverged replica has no score.

    Args:
        frame: as `collect` gives it.
        selection: what chooses checkpoint and learning rate.
        all_known: no run is absent from the frame: the learning rates of a cell are those of its own rows, whatever
            other cells have (`sweeps.grids`).

    Columns: `accuracy`, `token_accuracy`, `loss` (means over the `n` seeds of that learning rate), `chosen_by` (the
    accuracy that chose it: of `clean` on validation), `std` (sample standard deviation of the accuracy, NaN below two
    seeds), `rates` (the learning rates at which a run ended), `edge` (the best learning rate is the smallest or largest
    of several, and its lead calls for a wider grid: `sweeps.edges`; never if rates are lacking), `lacking` and `added`
    (learning rates that the cell should have and has no score at, and those that it has beyond its row:
    `sweeps.grids`), `configs` (how many configurations competed besides the learning rate, less those that failed),
    `diverged` and `lost` (replicas of the cell without a score, by divergence or otherwise), `seeds` (how many seeds
    the cell has at any learning rate: the best one lost some if that is more than `n`), `by_seed` (accuracy by seed),
    `replicas` (the (run_id, replica) behind it), `solved` of the `known` replicas at any learning rate that reached a
    test accuracy of 0.9, `solved_by_seed` (the share of them by seed), `steps_to_90` (the median of the steps that all
    took, NaN unless more than half got there: `sweeps.solved.counts`), `chance` (the accuracy of a guess on this task
    and setting, NaN if that is not known),
    `status`: `ok`; `partial` (some replicas have no score); `diverged` or `failed` (none has); `missing` (no run, or
    none that has ended).
    """
    groups = defaultdict(list)
    for row in frame[frame["mixer"].notna()].to_dict("records"):
        groups[row["mixer"], row["task"], row["setting"]].append(row)
    mixers, problems = {cell[0] for cell in groups}, {cell[1:] for cell in groups}
    cells = sorted(((mixer, *problem) for mixer in mixers for problem in problems), key=_cell_rank)
    best = [_best(cell, groups.get(cell, []), selection) for cell in cells]
    chances: dict[tuple[str, ...], float] = {}  # by task and setting: the first that is known
    for cell, group in groups.items():
        for row in group:
            if math.isnan(chances.get(cell[1:], math.nan)):
                chances[cell[1:]] = chance_of(row)
    for cell, made in zip(cells, best, strict=True):
        made["chance"] = chances.get(cell[1:], math.nan)
    of_cells = grids(groups, all_known)
    for cell, made in zip(cells, best, strict=True):
        made["lacking"], made["added"] = of_cells[cell] if made["n"] else ((), ())
        made["edge"] = made["edge"] and not made["lacking"]
    return pd.DataFrame(best, columns=list(CELL_COLUMNS))


def _cell_rank(cell: Cell) -> tuple:
    mixer, task, setting = cell
    return (rank(task, TASKS), setting_rank(setting), rank(mixer, MIXERS))


def _best(cell: Cell, group: list[Row], selection: Selection) -> Row:
    group = _one_per_replica(group)
    statuses = Counter(row["status"] for row in group)
    finished, diverged = statuses["finished"], statuses["diverged"]
    best: dict[str, Any] = dict(zip(("mixer", "task", "setting"), cell, strict=True)) | {
        "n": 0,
        "rates": tuple(sorted({row["lr"] for row in group if row["status"] in ENDED})),
        "edge": False,
        "configs": len({row["config"] for row in group if row["status"] in ENDED}),
        "diverged": diverged,
        "lost": len(group) - finished - diverged,
        "seeds": len({row["seed"] for row in group}),
        "by_seed": {},
        "replicas": [],
        **counts((row["seed"], row["steps_to_90"]) for row in group if row["status"] in ENDED),
    }
    if not finished:
        ended = diverged or statuses["failed"]
        return best | {"status": ("diverged" if diverged else "failed") if ended else "missing"}
    seeds, edge = best_trial(group, selection)
    scores = [row[REPORTED[selection]] for row in seeds]
    return best | {
        "status": "ok" if finished == len(group) else "partial",
        "accuracy": fmean(scores),
        "chosen_by": round(fmean(row[CHOSEN_BY[selection]] for row in seeds), 12),  # as by `best_trial`
        "std": stdev(scores) if len(scores) > 1 else None,
        "n": len(scores),
        "token_accuracy": fmean(row[f"{selection}_token_accuracy"] for row in seeds),
        "loss": fmean(row[f"{selection}_loss"] for row in seeds),
        "edge": edge,
        **{key: seeds[0][key] for key in ("lr", "config", "num_params", "state_size")},
        "by_seed": {row["seed"]: score for row, score in zip(seeds, scores, strict=True)},
        "replicas": [(row["run_id"], int(row["replica"])) for row in seeds],
    }


def _one_per_replica(group: list[Row]) -> list[Row]:
    """Without repeats: the same configuration, learning rate and seed may be part of several populations."""
    kept: dict[tuple, Row] = {}
    for row in sorted(group, key=lambda row: (row["status"] != "finished", row["run_id"])):
        kept.setdefault((row["config"], row["lr"], row["seed"]), row)
    return list(kept.values())


def complaints(frame: pd.DataFrame, told: Collection[str] = ()) -> list[str]:
    """What a reader of the tables must know: unreadable records, and runs that differ in more than the tables show.

    Args:
        frame: as `collect` gives it.
        told: columns of the frame whose values the tables show anyway.
    """
    unreadable = frame[frame["status"] == "unreadable"]
    found = [f"unreadable: {error}" for error in unreadable["error"].dropna()]
    parameters = [column for column in frame if column.startswith("task.") and column not in told]
    for part in ("mixer", "task"):
        if f"code_version.{part}" in frame:
            versions = frame.groupby(_named_with_class(frame, part))[f"code_version.{part}"].nunique()
            found += [
                f"{part} {name}: its code changed between these runs ({count} versions)."
                for name, count in versions.items()
                if count > 1
            ]
    if "code_version.training" in frame:
        # The optimizer and the schedule are parts of it, and runs may differ in them on purpose.
        versions = frame.groupby(["optimizer", "schedule"])["code_version.training"].nunique()
        if (versions > 1).any():
            found.append(f"The code of training changed between these runs ({versions.max()} versions).")
    for (task, setting), group in frame.groupby(["task", "setting"]):
        for column in parameters:
            values = sorted({str(value) for value in group[column].tolist() if not pd.isna(value)})
            if len(values) > 1:
                found.append(f"{task} {setting}: runs with different {column} share this name ({', '.join(values)})")
    finished = frame[frame["status"] == "finished"]
    return found + _shared_names(frame) + _unlike_machines(finished, told) + _unlike_mixers(finished, told)


def _named_with_class(frame: pd.DataFrame, part: str) -> pd.Series:
    """The names of a part of the runs, with the class where several share a name."""
    if f"{part}._target_" not in frame:
        return frame[part]
    classes = frame[f"{part}._target_"]
    return frame[part].where(classes.isna(), frame[part] + " (" + classes.astype(str) + ")")


def _shared_names(frame: pd.DataFrame) -> list[str]:
    """The names under which there are runs of several classes."""
    found = []
    for part in CLASSED:
        if f"{part}._target_" in frame:
            for name, classes in frame.groupby(part)[f"{part}._target_"]:
                known = sorted(set(classes.dropna()))
                if len(known) > 1:
                    number = "two" if len(known) == 2 else len(known)
                    found.append(
                        f"{part} {name}: runs of {number} classes ({', '.join(known)}) share this name:"
                        " give each a name"
                    )
    return found


def _unlike_machines(frame: pd.DataFrame, told: Collection[str]) -> list[str]:
    """Precisions and devices, if they differ between mixers or within a task and setting."""
    found = []
    for column in MACHINE:
        if column not in frame or column in told:
            continue
        known = frame[frame[column].notna()]
        values = known[column].map(str)
        if values.nunique() < 2:
            continue
        of_mixer = _values_of_mixers(values, known["mixer"])
        of_cells = values.groupby([known["task"], known["setting"]]).nunique()
        if of_mixer.nunique() > 1:
            found.append(f"{column} ({_listed(of_mixer)})")
        elif (of_cells > 1).any():
            found.append(f"{column} ({of_mixer.iloc[0]})")
    return [f"The runs differ in {', '.join(found)}, which may change scores as well."] if found else []


def _values_of_mixers(values: pd.Series, mixers: pd.Series) -> pd.Series:
    """All values that each mixer has, as text."""
    return values.groupby(mixers).agg(lambda of_one: ", ".join(sorted({str(value) for value in of_one})))


def _listed(of_mixer: pd.Series) -> str:
    return "; ".join(f"{mixer} {values}" for mixer, values in of_mixer.items())


def _unlike_mixers(frame: pd.DataFrame, told: Collection[str]) -> list[str]:
    """Settings, other than mixer and learning rate, whose values differ between mixers."""
    found = []
    for column in frame:
        group, dot, _ = column.partition(".")
        if column not in ALIKE and not (dot and group in ("model", "optimizer", "schedule")):
            continue
        if dot and group in frame and frame[group].nunique() > 1:
            continue  # another optimizer or schedule: its own keys tell no more
        if column in told:
            continue
        said = frame[column].map(lambda value: None if value is False else value)  # which counts as absent
        if len(set(said.tolist())) < 2:
            continue
        of_mixer = _values_of_mixers(said, frame["mixer"])
        if of_mixer.nunique() > 1:
            found.append(f"{column} ({_listed(of_mixer)})")
    return [f"The mixers differ in more than the mixer: {', '.join(found)}."] if found else []
