"""`force`: what repeats a finished run, what is left when that is stopped or fails, and what a sweep repeats."""

import json
import shutil
import signal

import pytest
from command_line import TINY, kill_at_first_checkpoint, records, result_of, run_py

from mixerlab.loading import load
from mixerlab.records.claims import claim
from mixerlab.records.files import read_metrics, read_record, run_folder, weights_files
from mixerlab.training.datamodule import PopulationData

ATTN = ("mixer=attn", "task=icr", *TINY)
LONG = (*ATTN, "trainer.epochs=25")
FORCED = (*LONG, "force=true")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A results folder with the long run, finished."""
    results = tmp_path_factory.mktemp("results")
    assert run_py(*LONG, f"results_dir={results}").code == 0
    return results


@pytest.fixture
def results(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "results")


def test_a_training_by_force_that_was_killed_goes_on(results, trained):
    kill_at_first_checkpoint(results, *FORCED)
    assert "is finished: skipped" in run_py(*LONG, f"results_dir={results}").err  # the record of before counts
    sweep = run_py("-m", *LONG, f"results_dir={results}")
    assert "1 finished already" in sweep.out
    again = run_py(*FORCED, f"results_dir={results}")
    assert again.code == 0 and "continuing from" in again.err
    assert result_of(results) == result_of(trained) and not list(results.glob("runs/*/resume-*"))
    assert "continuing from" not in run_py(*FORCED, f"results_dir={results}").err


def test_what_a_process_left_that_was_killed_after_its_record_is_not_gone_on_from(results):
    kill_at_first_checkpoint(results, *FORCED)
    (path,) = results.glob("runs/*/record.json")
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))  # as if this training had written it
    assert "continuing from" not in run_py(*FORCED, f"results_dir={results}").err


def test_a_training_by_force_that_fails_leaves_the_results_of_the_one_before(results, monkeypatch):
    before = {path: path.read_bytes() for path in results.glob("runs/*/*") if path.name != ".claim"}

    def broken(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("mixerlab.training.fit.Training.train", broken)
    outcome = run_py(*FORCED, f"results_dir={results}")
    folder = next(iter(before)).parent
    assert outcome.code == 1 and "out of memory" in outcome.err
    assert outcome.err.endswith(f" (the record in {folder} is of the training before, and stays)\n")
    (error,) = results.glob("runs/*/error.txt")
    assert "out of memory" in error.read_text()
    assert {path: path.read_bytes() for path in before} == before
    assert not list(results.glob("runs/*/resume-*"))
    sweep = run_py("-m", *FORCED, f"results_dir={results}")
    assert sweep.code == 1 and "1 of 1 run failed" in sweep.err
    assert {path: path.read_bytes() for path in before} == before


class OtherOrder(PopulationData):
    """Replicas see their rows in another order, as if by other code."""

    def __init__(self, splits, seeds, batch_size):
        super().__init__(splits, [seed + 1 for seed in seeds], batch_size)


def stop_while_it_replaces_files(results, monkeypatch, before="write_record"):
    """A training by force, with other results, that is stopped just before it writes this file."""

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mixerlab.training.fit.PopulationData", OtherOrder)
        patched.setattr(f"mixerlab.train.{before}", stop)
        assert run_py(*FORCED, f"results_dir={results}").code == 128 + signal.SIGINT


@pytest.mark.parametrize("before", ["write_record", "_write_weights", "write_metrics"])
@pytest.mark.parametrize("sweep", [(), pytest.param(("-m",), marks=pytest.mark.sampled(3))])
def test_a_training_by_force_stopped_while_it_replaces_files_is_completed(results, trained, monkeypatch, sweep, before):
    stop_while_it_replaces_files(results, monkeypatch, before)
    (folder,) = results.glob("runs/*")
    assert read_record(folder) == read_record(run_folder(trained, folder.name))  # still that of before
    assert run_py(*LONG, "dry_run=true", f"results_dir={results}").out.endswith("to run\n")
    assert "0 of them finished" in run_py("-m", *LONG, "dry_run=true", f"results_dir={results}").out
    monkeypatch.setattr("mixerlab.training.fit.PopulationData", OtherOrder)
    outcome = run_py(*sweep, *LONG, f"results_dir={results}")
    assert outcome.code == 0 and not list(folder.glob("resume-*"))
    assert read_record(folder)["rows"] != read_record(run_folder(trained, folder.name))["rows"]
    assert read_metrics(folder) is not None and bool(sweep) != bool(weights_files(folder))
    if not sweep:
        assert "continuing from" in outcome.err and load(folder).row in read_record(folder)["rows"]
    assert "finished" in run_py(*LONG, "dry_run=true", f"results_dir={results}").out


def test_it_is_completed_also_beside_a_record_without_a_digest(results, trained, monkeypatch):
    """As records had none until 2026-11-24."""
    (path,) = results.glob("runs/*/record.json")
    record = json.loads(path.read_text())
    del record["sha256"]
    path.write_text(json.dumps(record))
    stop_while_it_replaces_files(results, monkeypatch)
    monkeypatch.setattr("mixerlab.training.fit.PopulationData", OtherOrder)
    assert run_py(*LONG, f"results_dir={results}").code == 0
    assert load(path.parent).row in read_record(path.parent)["rows"] != record["rows"]


def test_completing_it_is_tried_again_if_it_fails(results, trained, monkeypatch):
    stop_while_it_replaces_files(results, monkeypatch)
    (folder,) = results.glob("runs/*")

    def broken(*_, **__):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr("mixerlab.training.fit.Training.train", broken)
        for _ in range(2):
            outcome = run_py(*LONG, f"results_dir={results}")
            assert outcome.code == 1 and "is of the training before, and stays" in outcome.err
    assert read_record(folder) == read_record(run_folder(trained, folder.name))
    assert run_py(*LONG, f"results_dir={results}").code == 0
    assert read_metrics(folder) is not None and not list(folder.glob("resume-*")) + list(folder.glob("error.txt"))


def of_other_code(results) -> None:
    (path,) = results.glob("runs/*/record.json")
    record = json.loads(path.read_text())
    record["provenance"]["code_version"]["mixer"] = "another"
    path.write_text(json.dumps(record))


@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_changed_repeats_what_other_code_made_and_nothing_else(results, sweep):
    given = (*sweep, *LONG, "force=changed", f"results_dir={results}")
    finished = "1 finished already" if sweep else "is finished: skipped"
    kept = records(results)
    assert finished in "".join(run_py(*given)[1:]) and records(results) == kept
    of_other_code(results)
    ((run, before),) = records(results).items()
    assert run_py(*given).code == 0
    after = records(results)[run]
    assert after["provenance"]["code_version"]["mixer"] != "another" and after["rows"] == before["rows"]
    assert finished in "".join(run_py(*given)[1:]) and records(results) == {run: after}


def test_a_sweep_leaves_a_run_alone_that_another_process_trains(results):
    ((run, _),) = records(results).items()
    folder = run_folder(results, run)
    (folder / "resume-mine.ckpt").write_text("")
    with claim(folder):
        assert run_py("-m", *LONG, f"results_dir={results}").code == 0
        assert (folder / "resume-mine.ckpt").exists()
    assert run_py("-m", *LONG, f"results_dir={results}").code == 0
    assert not (folder / "resume-mine.ckpt").exists()


@pytest.mark.parametrize("value", ["1", "maybe", "null"])
def test_other_values_are_refused(value, tmp_path):
    outcome = run_py(*ATTN, f"force={value}", f"results_dir={tmp_path}")
    assert outcome.code == 1 and "must be true, false or changed" in outcome.err
