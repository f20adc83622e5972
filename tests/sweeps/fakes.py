"""Records, metrics and whole results folders made up for the tests of `sweeps`."""

import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mixerlab.records.files import run_folder, write_config, write_metrics, write_record
from mixerlab.records.identity import run_id
from mixerlab.records.schema import ACCURACY, Record, Score, labels_of_replicas, result_columns
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.swept import spread_out

GRID = (5e-4, 1e-3, 5e-3)
BASELINES = {
    "icr": {"vocab_size": 16, "seq_len": 128, "num_train_examples": 12800},
    "ncr": {"vocab_size": 32, "seq_len": 128, "num_train_examples": 12800, "frac_noise": 0.2},
    "mem": {"vocab_size": 256, "seq_len": 32, "num_train_examples": 256},
}


def config(
    mixer: str = "attn",
    task: str = "icr",
    setting: str = "baseline",
    lr: float | Sequence[float] = GRID,
    seed: int | Sequence[int] = 0,
    num_heads: int = 8,
    changed: Mapping[str, Any] | None = None,
    **task_parameters: float,
) -> dict:
    """A resolved config; the setting changes the task's parameter that it names, `changed` has other dotted keys."""
    parameters = BASELINES.get(task, {"vocab_size": 128, "seq_len": 512}) | task_parameters
    axis, _, value = setting.rpartition("-")
    if axis in parameters:
        parameters[axis] = type(parameters[axis])(value)
    made: dict[str, Any] = {
        "mixer": {"name": mixer, "_target_": f"mixerlab.mixers.{mixer}.Mixer", "num_heads": num_heads},
        "task": {
            "name": task,
            "_target_": f"mixerlab.tasks.{task}.Task",
            "setting": setting,
            "baseline": BASELINES.get(task, {}),
            "changes": {"seq_len": [256, 512]},
            **parameters,
        },
        "model": {"d_model": 128, "n_layers": 2},
        "optimizer": {
            "name": "muon",
            "lr": lr if isinstance(lr, float) else list(lr),
            "weight_decay": 0.1,
            "betas": [0.8, 0.95],
        },
        "schedule": {"name": "wsd", "decay": 0.2},
        "trainer": {"epochs": 60, "batch_size": 128, "progress": True, "checkpoint_every": 1},
        "seed": seed,
        "results_dir": "results",
        "force": False,
        "dry_run": False,
    }
    for key, value in (changed or {}).items():
        group, _, name = key.partition(".")
        made[group][name] = value
    return made


def row(labels: dict, accuracy: float | str, val_accuracy: float | None = None) -> dict:
    """A row with this accuracy under both selections, or with a status (diverged, failed) and no score."""
    nothing = dict.fromkeys(result_columns())
    if isinstance(accuracy, str):
        return labels | nothing | {"status": accuracy, "error": "out of memory" if accuracy == "failed" else None}
    val_accuracy = accuracy if val_accuracy is None else val_accuracy
    counts = {"num_params": 407_184, "state_size": 1024, "steps": 6000, "official_epoch": 50, "clean_epoch": 51}
    counts["steps_to_90"] = 3000 if accuracy >= 0.9 else None
    scores = {"clean_val_accuracy": val_accuracy, "val_accuracy": val_accuracy, "test_accuracy": accuracy}
    losses = {"train_loss": 0.5, "clean_val_loss": 1.0 - val_accuracy, "val_loss": 1.0 - val_accuracy}
    losses["test_loss"] = 1.0 - accuracy
    for selection in ("official", "clean"):
        scores |= dict.fromkeys((f"{selection}_accuracy", f"{selection}_token_accuracy"), accuracy)
        losses[f"{selection}_loss"] = 1.0 - accuracy
    return labels | nothing | {"status": "finished"} | counts | scores | losses


def record(config: dict, scores: Sequence[float | str | tuple[float, float]]) -> Record:
    """A finished record; `scores` by seed, then learning rate: accuracy, (accuracy, on val) or a status."""
    rows = [
        row(labels, *(score if isinstance(score, tuple) else (score,)))
        for labels, score in zip(labels_of_replicas(config), scores, strict=True)
    ]
    provenance = {"device": "cpu", "wall_time_s": 1.5, "versions": {"torch": "2.13.0"}, "notes": []}
    return Record(run_id=run_id(config), status="finished", rows=rows, provenance=provenance)


def add_run(
    results: Path,
    scores: Sequence[float | str | tuple[float, float]],
    sizes: Mapping[str, int] | None = None,
    provenance: Mapping[str, Any] | None = None,
    score: Score = ACCURACY,
    **overrides,
) -> str:
    """Writes a finished run with its config, record and curves, and returns its id; `sizes` has other counts.

    The scores are of this name and direction, whatever they are.
    """
    settings = config(**overrides)
    folder = run_folder(results, run_id(settings))
    write_config(folder, settings)
    made = record(settings, scores)
    for one in made.rows:
        one |= sizes or {}
    made.provenance.update(provenance or {})
    curves = pd.concat(_curve(one) for one in made.rows)
    if score != ACCURACY:
        made = replace(made, score=score, rows=[_renamed(one, score) for one in made.rows])
        curves = curves.assign(**{f"{split}_{score.name}": curves[f"{split}_accuracy"] for split in ("val", "test")})
    write_metrics(folder, curves)
    write_record(folder, made)
    return made.run_id


def _renamed(row: dict, score: Score) -> dict:
    named = {re.sub("(?<!token)_accuracy$", f"_{score.name}", name): value for name, value in row.items()}
    del named["steps_to_90"]
    return named | dict.fromkeys(("official_token_accuracy", "clean_token_accuracy"), 0.5)


def pack(results: Path, file: Path) -> None:
    """As `tar -cJf FILE -C RESULTS runs`."""
    with tarfile.open(file, "w:xz") as archive:
        archive.add(results / "runs", "runs")


def by_run_id(*configs: dict) -> dict[str, dict]:
    """As a sweep notes its runs."""
    return {run_id(config): config for config in configs}


def frame_of(results: Path, by: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of this folder, with the keys in columns and settings that were swept."""
    return spread_out(collect(results), by)


def cells_of(results: Path, by: Sequence[str] | None = None) -> pd.DataFrame:
    return best_per_cell(frame_of(results, by))


def _curve(row: dict, epochs: int = 12) -> pd.DataFrame:
    epoch = np.arange(epochs)
    reached = row["official_accuracy"] or 0.1
    accuracy = reached * (1 - np.exp(-epoch / 3))
    frame = pd.DataFrame({"epoch": epoch, "step": 100 * epoch, "train_loss": 3 * np.exp(-reached * epoch / 4)})
    for split in ("val", "test"):
        frame[f"{split}_loss"] = 1 - accuracy
        frame[f"{split}_accuracy"] = frame[f"{split}_token_accuracy"] = accuracy
    return frame.assign(replica=row["replica"], lr=row["lr"], seed=row["seed"], lr_now=row["lr"])
