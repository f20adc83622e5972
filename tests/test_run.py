"""`python run.py` from the command line to the record: one run, again, by force, killed and resumed, failed."""

import csv
import io
import os
import shutil
import signal
import socket
import sys

import pytest
import torch
from command_line import ATTN, records, result_of, run_py, stop_at_first_checkpoint

import mixerlab
from mixerlab.mixers.attn import Attention
from mixerlab.records.claims import claim
from mixerlab.records.files import run_folder
from mixerlab.records.schema import Record


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    return results, run_py(*ATTN, f"results_dir={results}", draws=True)


def test_a_run_prints_its_table_and_where_the_record_is(finished):
    results, outcome = finished
    assert outcome.code == 0
    ((run_id, record),) = records(results).items()
    folder = run_folder(results, run_id)
    assert f"record: {folder / 'record.json'}" in outcome.out and f"figure: {folder / 'curves.png'}" in outcome.out
    assert (folder / "curves.png").stat().st_size > 10_000
    printed = [line.split() for line in outcome.out.splitlines()]
    for row in record["rows"]:
        accuracies = [f"{row[f'{selection}_accuracy']:.3f}" for selection in ("official", "clean")]
        assert [f"{row['lr']:g}", "0", *accuracies, "finished"] in printed


def test_the_record_says_what_was_trained(finished):
    results, _ = finished
    ((run_id, record),) = records(results).items()
    Record.from_json(record)
    assert [(row["lr"], row["seed"]) for row in record["rows"]] == [(0.01, 0), (0.001, 0)]
    for row in record["rows"]:
        assert (row["mixer"], row["task"], row["status"]) == ("attn", "icr", "finished")
        assert row["setting"] == "vocab_size=8,seq_len=16,num_train_examples=40"
        assert row["steps"] == 3 * 3  # 3 epochs of 40 rows in batches of 16
        assert row["state_size"] == 2 * 2 * 16 * 15  # layers, keys and values, width, T = seq_len - 1
        # Embedding and head with bias, final norm, and two blocks: 2 norms, 4 of 16 x 16, 3 of 16 x 48.
        assert row["num_params"] == 8 * 16 + 8 * 17 + 16 + 2 * (2 * 16 + 4 * 256 + 2 * 8 + 3 * 16 * 48)
        assert row["hparams"]["mixer.num_heads"] == 2
    origin = record["provenance"]
    assert origin["device"] == "cpu" and "attn" in origin["backends"] and origin["wall_time_s"] > 0
    assert (origin["threads"], origin["instruction_set"]) == (1, torch.backends.cpu.get_cpu_capability())
    assert {"torch", "lightning", "python"} <= set(origin["versions"]) and "git_commit" in origin

    rows = list(csv.DictReader(io.StringIO((run_folder(results, run_id) / "metrics.csv").read_text())))
    assert [(row["replica"], row["epoch"], row["step"]) for row in rows] == [
        (str(replica), str(epoch), str(3 * (epoch + 1))) for replica in range(2) for epoch in range(3)
    ]
    last = record["rows"][1]
    assert rows[-1]["test_accuracy"] == f"{last['test_accuracy']:.7g}" and float(rows[-1]["lr"]) == 0.001


def test_a_finished_run_is_skipped(finished):
    results, first = finished
    ((run_id, before),) = records(results).items()
    again = run_py(*ATTN, f"results_dir={results}")
    assert again.code == 0 and "is finished: skipped (force=true repeats it)" in again.err
    assert again.out == first.out and records(results)[run_id] == before


@pytest.mark.slow
def test_copying_runs_merges_results(finished, tmp_path):
    """As from another machine: the run is found finished, also with its rates in another order."""
    run_py(*ATTN, f"results_dir={tmp_path}", "seed=1")
    assert result_of(tmp_path)[1] != result_of(finished[0])[1]
    shutil.copytree(finished[0] / "runs", tmp_path / "runs", dirs_exist_ok=True)
    again = run_py(*ATTN, f"results_dir={tmp_path}", "optimizer.lr=[0.001,0.01]", "trainer.checkpoint_every=9")
    assert "is finished: skipped" in again.err and len(records(tmp_path)) == 2
    assert len(mixerlab.collect(tmp_path)) == 4


def test_a_run_that_another_process_trains_is_left_to_it(finished, tmp_path):
    (run_id,) = records(finished[0])
    with claim(run_folder(tmp_path, run_id)):
        outcome = run_py(*ATTN, f"results_dir={tmp_path}")
    assert outcome.code == 0 and "another process is training this run" in outcome.err
    assert f"(process {os.getpid()} on {socket.gethostname()} since" in outcome.err
    assert not records(tmp_path)


LONG = (*ATTN, "trainer.epochs=5")


def test_a_stopped_run_resumes_and_ends_with_the_record_of_an_unbroken_one(tmp_path):
    stop_at_first_checkpoint(tmp_path / "stopped", *LONG)
    assert not records(tmp_path / "stopped")
    for name in ("stopped", "unbroken"):
        outcome = run_py(*LONG, f"results_dir={tmp_path / name}")
        assert outcome.code == 0
        assert ("continuing from" in outcome.err) == (name == "stopped")
    assert result_of(tmp_path / "stopped") == result_of(tmp_path / "unbroken")
    for name in ("stopped", "unbroken"):
        (record,) = records(tmp_path / name).values()
        earlier = record["provenance"]["resumed_after_s"]
        assert (earlier > 0) == (name == "stopped") and record["provenance"]["wall_time_s"] > earlier
        assert record["provenance"]["training_s"] > earlier and record["provenance"]["tokens_per_s"] > 0
    assert not list(tmp_path.glob("*/runs/*/resume-*.ckpt"))


def test_a_diverged_learning_rate_stands_in_the_record_beside_the_others(tmp_path):
    outcome = run_py(*ATTN, f"results_dir={tmp_path}", "optimizer.lr=[0.01,1e30]")
    assert outcome.code == 0 and "-         -  diverged: the gradient was not finite in step" in outcome.out
    assert "accuracy on test\nlearning rate  seed  official     clean  status\n" in outcome.out
    record, _ = result_of(tmp_path)
    fine, wild = record["rows"]
    assert (fine["status"], fine["error"]) == ("finished", None)
    assert wild["status"] == "diverged" and "not finite" in wild["error"]


class Broken(Attention):
    def forward(self, x):
        raise KeyError("gone")


class Exits(Attention):
    def forward(self, x):
        sys.exit(3)


@pytest.mark.parametrize(("mixer", "error"), [(Broken, "KeyError: 'gone'"), (Exits, "SystemExit: 3")])
def test_a_failed_run_is_recorded_with_its_error(tmp_path, mixer, error):
    results = tmp_path / "results"
    command = (*ATTN, f"results_dir={results}", f"mixer._target_={__name__}.{mixer.__name__}")
    outcome = run_py(*command)
    line = mixer.forward.__code__.co_firstlineno + 1
    error += f", in {mixer.__name__}.forward ({__file__}:{line})"
    ((run_id, record),) = records(results).items()
    told = f"error: {error}; its traceback: {run_folder(results, run_id) / 'error.txt'}"
    assert outcome.code == 1 and outcome.err.splitlines()[-1] == told and "Traceback" not in outcome.err
    assert record["status"] == "failed" and record["error"] == error
    assert "Traceback" in (run_folder(results, run_id) / "error.txt").read_text()
    assert run_py(*command).err.splitlines()[-1] == told  # it is tried again


def test_a_handler_of_sigterm_that_is_not_of_python(monkeypatch):
    """As a profiler's or MPI's, which is loaded before: Python knows no value for it."""
    set_handler = signal.signal

    def set_and_tell_none(number, handler):
        set_handler(number, handler)

    monkeypatch.setattr(signal, "signal", set_and_tell_none)
    assert run_py("report", "--help").code == 0
