"""Loggers: what they are told, and that one which is missing or does not start costs no record."""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from command_line import TINY, records, run_py

import mixerlab.loggers
from mixerlab.records.best import ended_at_best_rate

RUN = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=2", "seed=[0,1]")


# By learning rate, of three seeds. The means of the first two differ in their last bit only.
EQUAL_MEANS = {0.1: (0.1, 0.1, 0.4), 0.2: (0.1, 0.2, 0.3), 0.3: (0.0, 0.0, 0.0)}


def a_row(lr, seed, val, status="finished"):
    return {"lr": lr, "seed": seed, "status": status, "clean_val_accuracy": val}


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([a_row(0.1, 0, 0.5), a_row(0.2, 0, 0.75), a_row(0.3, 0, 0.25)], [(0.2, 0)]),
        ([a_row(0.1, 0, 0.5), a_row(0.2, 0, 1.0), a_row(0.1, 1, 0.75), a_row(0.2, 1, 0.0)], [(0.1, 0), (0.1, 1)]),
        # A seed that diverged counts as 0.
        (
            [a_row(0.1, 0, 0.5), a_row(0.2, 0, 1.0), a_row(0.1, 1, 0.5), a_row(0.2, 1, None, "diverged")],
            [(0.1, 0), (0.1, 1)],
        ),
        (
            [a_row(0.1, 0, None, "diverged"), a_row(0.2, 0, 1.0), a_row(0.1, 1, 0.5), a_row(0.2, 1, None, "diverged")],
            [(0.2, 0), (0.2, 1)],
        ),
        ([a_row(0.1, 0, None, "failed")], []),
        ([a_row(0.1, 0, None, "diverged")], []),
        # Between equals one inside the grid, as in the tables.
        ([a_row(0.1, 0, 0.5), a_row(0.2, 0, 0.5), a_row(0.3, 0, 0.5)], [(0.2, 0)]),
        (
            [a_row(lr, seed, val) for lr, vals in EQUAL_MEANS.items() for seed, val in enumerate(vals)],
            [(0.2, 0), (0.2, 1), (0.2, 2)],
        ),
    ],
)
def test_the_best_rate_is_the_best_mean_on_validation(rows, best):
    assert [(found["lr"], found["seed"]) for found in ended_at_best_rate(rows)] == best


class WandbLogger:
    """Keeps what the logger of this name is told."""

    def __init__(self):
        self.experiment = mock.Mock(summary={})

    def log_table(self, key, columns, data):
        self.table = data


def test_a_diverged_replica_counts_as_0_in_the_summary():
    nothing = dict.fromkeys(mixerlab.loggers.RESULT_COLUMNS)
    ended = [nothing | a_row(0.1, seed, 0.9) | {"clean_accuracy": 0.6} for seed in (0, 1)]
    logger = WandbLogger()
    mixerlab.loggers.log_results({"wandb": logger}, {}, [*ended, nothing | a_row(0.1, 2, None, "diverged")])
    summary = {"lr": 0.1, "seeds": 3, "diverged": 1, "clean_val_accuracy": 0.6, "clean_accuracy": 0.4}
    assert logger.experiment.summary == pytest.approx({f"best/{key}": value for key, value in summary.items()})


def test_a_logger_that_is_not_installed_is_said_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    outcome = run_py(*RUN, "logger=wandb", "force=true", f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 1 and len(outcome.err.splitlines()) == 1
    assert "logger.wandb: ModuleNotFoundError" in outcome.err
    assert not (tmp_path / "results").exists()


REFUSING = """
from lightning.pytorch.loggers import CSVLogger

class Refusing(CSVLogger):
    def log_hyperparams(self, params):
        raise ConnectionError("no login\\nsecond line")
"""


@pytest.mark.slow
def test_a_logger_that_does_not_start_leaves_a_finished_record(tmp_path, monkeypatch):
    (tmp_path / "refusing.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(tmp_path)
    results = f"results_dir={tmp_path / 'results'}"
    assert run_py(*RUN, results).code == 0
    (path,) = tmp_path.glob("results/runs/*/record.json")
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.name != ".claim"}
    outcome = run_py(*RUN, "+logger.mine._target_=refusing.Refusing", "force=true", results)
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == "error: logger=mine does not start: ConnectionError: no login second line"
    assert {file.name: file.read_bytes() for file in path.parent.iterdir() if file.name != ".claim"} == before


@pytest.mark.slow
def test_tensorboard_has_hyperparameters_series_and_table(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outcome = run_py(*RUN, "logger=tensorboard", f"results_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    ((identity, record),) = records(tmp_path).items()
    events = EventAccumulator(str(tmp_path / "runs" / identity / "tensorboard")).Reload()
    for row in record["rows"]:
        name = f"lr-{row['lr']}_seed-{row['seed']}"
        values = [event.value for event in events.Scalars(f"test_accuracy/{name}")]
        assert len(values) == 2 and values[-1] == pytest.approx(row["test_accuracy"])
    (best,) = events.Scalars("best/clean_val_accuracy")
    chosen = ended_at_best_rate(record["rows"])
    assert best.value == pytest.approx(sum(r["clean_val_accuracy"] for r in chosen) / len(chosen))
    (table,) = events.Tensors("results/text_summary")
    text = table.tensor_proto.string_val[0].decode()
    assert text.count("\n") == 5
    assert all(f"| {r['lr']} | {r['seed']} | finished | {r['official_accuracy']} |" in text for r in record["rows"])
    (folder,) = [path.parent for path in tmp_path.glob("runs/*/tensorboard/hparams.yaml")]
    assert "optimizer.weight_decay: 0.1" in (folder / "hparams.yaml").read_text()


@pytest.mark.slow
def test_wandb_offline_has_hyperparameters_series_and_table(tmp_path):
    pytest.importorskip("wandb")
    # Two runs of one process are two runs of W&B.
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    with mock.patch.dict(os.environ, offline):
        outcomes = [run_py(*RUN, "logger=wandb", f"seed={seed}", f"results_dir={tmp_path}") for seed in ("[0,1]", "2")]
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes
    assert len(records(tmp_path)) == 2
    ((identity, record),) = [found for found in records(tmp_path).items() if len(found[1]["rows"]) == 4]
    config, history, summary = read_offline_run(tmp_path / "runs" / identity)
    assert config["mixer.name"] == "attn" and config["task.seq_len"] == 16 and config["run_id"] == identity
    assert config["optimizer.lr"] == [0.01, 0.001] and config["task.setting"] == record["rows"][0]["setting"]
    for row in record["rows"]:
        name = f"lr-{row['lr']}_seed-{row['seed']}"
        values = [step[f"test_accuracy/{name}"] for step in history if f"test_accuracy/{name}" in step]
        assert len(values) == 2 and values[-1] == pytest.approx(row["test_accuracy"])
    chosen = ended_at_best_rate(record["rows"])
    assert summary["best/lr"] == chosen[0]["lr"]
    assert summary["best/clean_accuracy"] == pytest.approx(sum(r["clean_accuracy"] for r in chosen) / len(chosen))
    (table,) = (tmp_path / "runs" / identity).rglob("results_*.table.json")
    written = json.loads(table.read_text())
    assert written["columns"] == list(mixerlab.loggers.RESULT_COLUMNS)
    assert [line[3] for line in written["data"]] == [found["official_accuracy"] for found in record["rows"]]


def read_offline_run(folder: Path) -> tuple[dict, list[dict], dict]:
    """The config, the steps and the summary in the only offline run below `folder`."""
    from wandb.proto.wandb_internal_pb2 import Record

    def items(of):
        return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in of}

    (path,) = folder.rglob("*.wandb")
    config, history, summary = {}, [], {}
    for data in log_entries(path.read_bytes()):
        found = Record()
        found.ParseFromString(data)
        kind = found.WhichOneof("record_type")
        if kind == "run":
            config |= items(found.run.config.update)
        elif kind == "config":
            config |= items(found.config.update)
        elif kind == "history":
            history.append(items(found.history.item))
        elif kind == "summary":
            summary |= items(found.summary.update)
    return config, history, summary


def log_entries(content: bytes) -> Iterator[bytes]:
    """The entries of a file in LevelDB's log format, behind W&B's own header of 7 bytes.

    Blocks of 32 KiB hold fragments: checksum (4 bytes), length (2), type (1: whole, 2: first, 3: middle, 4: last).
    """
    at, entry = 7, b""
    while at < len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        entry += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield entry
            entry = b""
