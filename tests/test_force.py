"""`force`: what repeats a finished run, what is left when that is stopped or fails, and what a sweep repeats."""

import json
import shutil

import pytest
from command_line import ATTN, records, result_of, run_py, stop_at_first_checkpoint

FORCED = (*ATTN, "force=true")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    assert run_py(*ATTN, f"results_dir={results}").code == 0
    return results


@pytest.fixture
def results(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "results")


def contents(results):
    return {path: path.read_bytes() for path in results.glob("runs/*/[!.]*") if not path.name.startswith("resume-")}


def test_a_training_by_force_that_was_stopped_goes_on(results, trained):
    before = contents(results)
    stop_at_first_checkpoint(results, *FORCED)
    assert contents(results) == before  # which counts
    assert "1 of them finished" in run_py("-m", *ATTN, "dry_run=true", f"results_dir={results}").out
    again = run_py(*FORCED, f"results_dir={results}")
    assert again.code == 0 and "continuing from" in again.err
    assert result_of(results) == result_of(trained)
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
    assert {path: path.read_bytes() for path in before} == before
    sweep = run_py("-m", *FORCED, f"results_dir={results}")
    assert sweep.code == 1 and "1 of 1 run failed" in sweep.err
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [(), ("-m",)])
def test_changed_repeats_what_other_code_made_and_nothing_else(results, sweep):
    command = (*sweep, *ATTN, "force=changed", f"results_dir={results}")
    finished = "1 finished already" if sweep else "is finished: skipped"
    kept = records(results)
    assert finished in "".join(run_py(*command)[1:]) and records(results) == kept
    ((run, before),) = records(results).items()
    before["provenance"]["code_version"]["mixer"] = "another"
    (results / "runs" / run / "record.json").write_text(json.dumps(before))
    assert run_py(*command).code == 0
    after = records(results)[run]
    assert after["provenance"]["code_version"]["mixer"] != "another" and after["rows"] == before["rows"]
    assert finished in "".join(run_py(*command)[1:]) and records(results) == {run: after}
