"""Loggers: what they are told, and that one which is missing or does not start costs no record."""

import json
import os
from unittest import mock

import pytest
from command_line import TINY, ran, records, refusal

import mixerlab.loggers
from mixerlab.records.best import ended_at_best_rate
from mixerlab.records.schema import Score, result_columns

RUN = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=2", "seed=[0,1]")


class WandbLogger:
    def __init__(self):
        self.experiment = mock.Mock(summary={})

    def log_table(self, key, columns, data):
        self.table = data


def test_a_diverged_replica_counts_as_0_in_the_summary():
    of_all, logger = dict.fromkeys(result_columns()) | {"lr": 0.1}, WandbLogger()
    ended = {"status": "finished", "clean_val_accuracy": 0.9, "clean_accuracy": 0.6}
    rows = [of_all | {"seed": seed} | own for seed, own in enumerate((ended, ended, {"status": "diverged"}))]
    mixerlab.loggers.log_results({"wandb": logger}, {}, mock.Mock(rows=rows, score=Score()))
    summary = {"lr": 0.1, "seeds": 3, "diverged": 1, "clean_val_accuracy": 0.6, "clean_accuracy": 0.4}
    assert logger.experiment.summary == pytest.approx({f"best/{key}": value for key, value in summary.items()})


def test_a_logger_that_is_not_installed_is_said_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    message = refusal(*RUN, "logger=wandb", "force=true", f"results_dir={tmp_path / 'results'}")
    assert "logger.wandb: ModuleNotFoundError" in message
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_tensorboard_has_hyperparameters_series_and_table(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ran(*RUN, "logger=tensorboard", f"results_dir={tmp_path}")
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
def test_wandb_offline_has_the_table_of_each_run(tmp_path):
    pytest.importorskip("wandb")
    # Two runs of one process are two runs of W&B.
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    with mock.patch.dict(os.environ, offline):
        for seed in ("[0,1]", "2"):
            ran(*RUN, "logger=wandb", f"seed={seed}", f"results_dir={tmp_path}")
    assert len(records(tmp_path)) == 2
    ((identity, record),) = [found for found in records(tmp_path).items() if len(found[1]["rows"]) == 4]
    (table,) = (tmp_path / "runs" / identity).rglob("results_*.table.json")
    written = json.loads(table.read_text())
    place = written["columns"].index("official_accuracy")
    assert [line[place] for line in written["data"]] == [found["official_accuracy"] for found in record["rows"]]
