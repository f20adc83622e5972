"""`force`: what repeats a finished run, what is left when that is stopped or fails, and what a sweep repeats."""

import json
import shutil
import signal

import pytest
from command_line import TINY, records, result_of, run_py, stop_at_first_checkpoint

from mixerlab.loading import load
from mixerlab.records import files
from mixerlab.records.files import ANEW, read_metrics, read_record, run_folder, weights_files
from mixerlab.training.datamodule import PopulationData

LONG = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=5")
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


def contents(results):
    return {path: path.read_bytes() for path in results.glob("runs/*/*") if path.name != ".claim" and path.is_file()}


def test_a_training_by_force_that_was_stopped_goes_on(results, trained):
    before = contents(results)
    stop_at_first_checkpoint(results, *FORCED)
    assert contents(results) == before
    assert "is finished: skipped" in run_py(*LONG, f"results_dir={results}").err  # the record of before counts
    assert "1 finished already" in run_py("-m", *LONG, f"results_dir={results}").out
    again = run_py(*FORCED, f"results_dir={results}")
    assert again.code == 0 and "continuing from" in again.err
    assert result_of(results) == result_of(trained) and not list(results.glob(f"runs/*/{ANEW}"))
    assert "continuing from" not in run_py(*FORCED, f"results_dir={results}").err


def test_a_training_by_force_that_fails_leaves_the_results_of_the_one_before(results, monkeypatch):
    before = contents(results)

    def broken(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("mixerlab.training.fit.Training.train", broken)
    outcome = run_py(*FORCED, f"results_dir={results}")
    (folder,) = results.glob("runs/*")
    assert outcome.code == 1 and "RuntimeError: out of memory" in outcome.err
    assert f"(the record in {folder} is of the training before, and stays)" in outcome.err
    assert "out of memory" in (folder / "error.txt").read_text()
    assert {path: path.read_bytes() for path in before} == before and not (folder / ANEW).exists()
    sweep = run_py("-m", *FORCED, f"results_dir={results}")
    assert sweep.code == 1 and "1 of 1 run failed" in sweep.err
    assert {path: path.read_bytes() for path in before} == before


class OtherOrder(PopulationData):
    """Replicas see their rows in another order, as if by other code."""

    def __init__(self, splits, seeds, *more, **options):
        super().__init__(splits, [seed + 1 for seed in seeds], *more, **options)


@pytest.mark.parametrize(("move", "command"), [(1, LONG), (3, FORCED), (5, ("-m", *LONG))])
@pytest.mark.sampled(3)
def test_files_that_were_half_moved_are_moved_by_the_next_command(results, trained, monkeypatch, move, command):
    """It trains nothing; the record is the last to be moved."""
    moves = []

    def stop(path, target):
        moves.append(target)
        if path.parent.name == ANEW and len([name for name in moves if name.parent == path.parents[1]]) == move:
            raise KeyboardInterrupt
        return rename(path, target)

    rename = files.Path.replace
    with monkeypatch.context() as patched:
        patched.setattr("mixerlab.training.fit.PopulationData", OtherOrder)
        patched.setattr(files.Path, "replace", stop)
        assert run_py(*FORCED, f"results_dir={results}").code == 128 + signal.SIGINT
    (folder,) = results.glob("runs/*")
    assert read_record(folder) == read_record(run_folder(trained, folder.name))  # still that of before

    def trains(*_, **__):
        raise AssertionError("it trains")

    monkeypatch.setattr("mixerlab.training.fit.Training.train", trains)
    outcome = run_py(*command, f"results_dir={results}")
    assert outcome.code == 0 and not (folder / ANEW).exists()
    assert read_record(folder).rows != read_record(run_folder(trained, folder.name)).rows
    assert read_metrics(folder) is not None and len(weights_files(folder)) == 2
    assert load(folder).row in read_record(folder).rows


def made_by_other_code(results) -> None:
    (path,) = results.glob("runs/*/record.json")
    record = json.loads(path.read_text())
    record["provenance"]["code_version"]["mixer"] = "another"
    path.write_text(json.dumps(record))


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_changed_repeats_what_other_code_made_and_nothing_else(results, sweep):
    command = (*sweep, *LONG, "force=changed", f"results_dir={results}")
    finished = "1 finished already" if sweep else "is finished: skipped"
    kept = records(results)
    assert finished in "".join(run_py(*command)[1:]) and records(results) == kept
    made_by_other_code(results)
    ((run, before),) = records(results).items()
    assert run_py(*command).code == 0
    after = records(results)[run]
    assert after["provenance"]["code_version"]["mixer"] != "another" and after["rows"] == before["rows"]
    assert finished in "".join(run_py(*command)[1:]) and records(results) == {run: after}
