"""`python run.py -m`: a sweep ends in tables and figures, outlives cells that fail, and is refused as a whole."""

import shlex

import pandas as pd
import pytest
from command_line import ROOT, TINY, ran, records, run_py, statuses

import mixerlab
from mixerlab.records.named import read_sweep

GRID = ("-m", "mixer=attn,gdn", "task=icr,cmp", *TINY, "trainer.epochs=1")
CELLS = [("attn", "cmp"), ("attn", "icr"), ("gdn", "cmp"), ("gdn", "icr")]
ONE = ("-m", "mixer=attn", "task=icr", *TINY)


def test_a_sweep_ends_in_tables_and_figures(tmp_path):
    outcome = ran(*GRID, f"results_dir={tmp_path}")
    assert "4 runs: 0 finished already, 4 to run" in outcome.out and "4 of 4 runs done" in outcome.err
    (report,) = tmp_path.glob("sweeps/*/report")
    assert f"tables and figures: {report}" in outcome.out
    assert statuses(tmp_path) == dict.fromkeys(CELLS, "finished")
    assert not list(tmp_path.glob("runs/*/*.safetensors"))

    rows = pd.read_csv(report / "rows.csv")
    assert sorted(set(zip(rows["mixer"], rows["task"], strict=True))) == CELLS and len(rows) == 8
    table = (report / "official" / "accuracy.md").read_text()
    assert table in outcome.out
    for accuracy in rows.groupby(["task", "mixer"])["official_accuracy"].max():
        assert f"{accuracy:.3f}" in table
    assert list(report.rglob("*.png"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "grid",
    [
        ("mixer=attn,linear", "task=mem", *TINY),
        ("mixer=attn", "task=text", "task.path='own text'", "task.tokens=null", *TINY[1:]),
    ],
)
def test_the_command_of_a_record_trains_its_run_alone(grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own text").write_text("any text will do " * 400)
    results = tmp_path / "own results"
    run_py("-m", *grid, "mixer.num_heads=2", "trainer.epochs=1", f"results_dir={results}")
    before = records(results)
    run_id, record = max(before.items(), key=lambda item: item[1]["rows"][0]["mixer"])  # linear, if there are two
    refused = run_py("generate", str(results / "runs" / run_id))
    python, script, *arguments = shlex.split(refused.err.partition("keep them: ")[2])
    assert (python, script) == ("python", str(ROOT / "run.py")) and record["provenance"]["command"] in refused.err
    ran(*arguments)
    assert records(results)[run_id]["provenance"]["command"] == shlex.join([python, script, *arguments])
    ran("generate", str(results / "runs" / run_id))
    with pytest.raises(ValueError, match=r"trainer\.keep_weights=both$") as error:
        mixerlab.load(results / "runs" / run_id, selection="clean")
    assert str(error.value).count("force=") == str(error.value).count("keep_weights=") == 1
    assert {run: record["rows"] for run, record in records(results).items()} == {
        run: record["rows"] for run, record in before.items()
    }


@pytest.mark.slow
def test_a_sweep_has_a_name_for_its_report(tmp_path, monkeypatch):
    monkeypatch.setattr("mixerlab.sweeps.report.report.report_figures", lambda *_: ())
    outcome = run_py(*ONE, "sweep=heads", "mixer.num_heads=2,4", f"results_dir={tmp_path}")
    assert "attn, num_heads=2" in outcome.out and "attn, num_heads=4" in outcome.out
    assert f"mixerlab report {tmp_path} --sweep heads" in outcome.out
    assert set(read_sweep(tmp_path, "heads")) == set(records(tmp_path))
    more = run_py(*ONE, "sweep=heads", "mixer.num_heads=1", f"results_dir={tmp_path}")
    assert f"of all sweeps named heads, or by other keys: mixerlab report {tmp_path} --sweep heads" in more.out


@pytest.mark.slow
def test_a_run_that_cannot_be_claimed_costs_itself(tmp_path):
    run = ("-m", "mixer=attn", "task=icr", *TINY, "trainer.epochs=1", f"results_dir={tmp_path / 'results'}")
    run_py(*run, "seed=0")
    (folder,) = tmp_path.glob("results/runs/*")
    (folder / ".claim").unlink()
    (folder / ".claim").mkdir()
    ran(*run, "seed=0")  # it is finished
    (folder / "record.json").unlink()
    outcome = run_py(*run, "seed=0,1")
    assert outcome.code == 1 and len(records(tmp_path / "results")) == 1
    assert outcome.err.count("FAILED") == 1 and str(folder / ".claim") in outcome.err
