"""`python run.py -m`: a sweep ends in tables and figures, outlives cells that fail, and is refused as a whole."""

import json
import os
import shlex
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from command_line import ROOT, TINY, finish_in_processes, records, run_py, statuses
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mixerlab.sweeps.launch.progress import SweepProgress
from mixerlab.sweeps.launch.sweep import Sweep

GRID = ("-m", "mixer=attn,gdn", "task=icr,cmp", *TINY)
CELLS = [("attn", "cmp"), ("attn", "icr"), ("gdn", "cmp"), ("gdn", "icr")]


def test_a_sweep_ends_in_tables_and_figures(tmp_path):
    outcome = run_py(*GRID, f"results_dir={tmp_path}")
    assert outcome.code == 0
    assert "4 runs: 0 finished already, 4 to run" in outcome.out and "4 of 4 runs done" in outcome.err
    assert f"tables and figures: {tmp_path / 'report'}" in outcome.out
    assert statuses(tmp_path) == dict.fromkeys(CELLS, "finished")
    assert not list(tmp_path.glob("runs/*/*.safetensors"))
    (command,) = {record["provenance"]["command"] for record in records(tmp_path).values()}
    assert shlex.split(command)[1:] == [*GRID, f"results_dir={tmp_path}"]  # as it was typed

    rows = pd.read_csv(tmp_path / "report" / "rows.csv")
    assert sorted(set(zip(rows["mixer"], rows["task"], strict=True))) == CELLS and len(rows) == 8
    for selection in ("official", "clean"):
        folder = tmp_path / "report" / selection
        best = rows.groupby(["task", "mixer"])["official_accuracy"].max()
        table = (folder / "accuracy.md").read_text()
        assert table in outcome.out
        if selection == "official":
            for accuracy in best:
                assert f"{accuracy:.3f}" in table
        for figure in ("accuracy", "learning_rates", "training_curves"):
            assert (folder / f"{figure}.png").exists() == (selection == "official")


def test_the_longest_runs_come_first(tmp_path):
    lengths = (8, 32, 16)
    grid = ("-m", "mixer=attn", "task=icr", *TINY, f"task.seq_len={','.join(map(str, lengths))}")
    outcome = run_py(*grid, f"results_dir={tmp_path}")
    assert outcome.code == 0
    written = sorted(tmp_path.glob("runs/*/record.json"), key=lambda path: path.stat().st_mtime_ns)
    found = [json.loads(path.read_text())["rows"][0]["hparams"]["task.seq_len"] for path in written]
    assert found == sorted(lengths, reverse=True)


BROKEN = """
from mixerlab.mixers.attn import Attention

class Broken(Attention):
    def forward(self, x):
        if x.shape[1] == 24 - 1:  # task.seq_len=24
            raise ArithmeticError("no such length")
        return super().forward(x)
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A grid of two cells, of which that of the longer sequences fails while it trains."""
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    results = tmp_path / "results"
    mixer = ("mixer=attn", "mixer._target_=broken.Broken")
    return results, ("-m", *mixer, "task=icr", *TINY, "task.seq_len=16,24", f"results_dir={results}")


def by_length(results):
    """{task.seq_len: record}"""
    return {record["rows"][0]["hparams"]["task.seq_len"]: record for record in records(results).values()}


def test_a_failing_cell_leaves_the_others_alone_and_is_tried_again(broken):
    results, grid = broken
    outcome = run_py(*grid)
    assert outcome.code == 1 and "1 of 2 runs failed" in outcome.err and "Traceback" not in outcome.err
    assert "FAILED attn icr vocab_size=8,seq_len=24" in outcome.err and "ArithmeticError: no such length" in outcome.err
    before = by_length(results)
    assert {length: record["status"] for length, record in before.items()} == {16: "finished", 24: "failed"}
    assert "failed" in (results / "report" / "official" / "settings.md").read_text()

    time.sleep(1)  # `started_at` counts seconds
    again = run_py(*grid)
    assert again.code == 1 and "2 runs: 1 finished already, 1 to run" in again.out
    for length, record in by_length(results).items():
        tried_again = record["provenance"]["started_at"] != before[length]["provenance"]["started_at"]
        assert tried_again == (length == 24)


def test_a_cell_that_is_refused_ends_a_sweep_before_any_trains(tmp_path):
    """Heads of one number cannot be rotated: attn is refused, and gdn is not trained for it either."""
    for dry_run in ("dry_run=true", "dry_run=false"):
        outcome = run_py(*GRID, "mixer.num_heads=16", f"results_dir={tmp_path}", dry_run)
        assert outcome.code == 1 and "RoPE rotates pairs" in outcome.err and not list(tmp_path.iterdir())
        assert len(outcome.err.splitlines()) == 1


def test_bad_input_ends_a_sweep_before_it_starts(tmp_path):
    mistakes = {
        "mixer=attn,nope": "mixer/nope",
        "task.setting=nope": "no such setting",
        "hydra.sweeper.max_batch_size=2": "unknown key hydra.sweeper.max_batch_size",  # the other sweepers' key
    }
    for override, message in mistakes.items():
        outcome = run_py(*GRID, f"results_dir={tmp_path}", override)
        assert outcome.code == 1 and message in outcome.err and not records(tmp_path)


@pytest.mark.slow
def test_submitit_as_on_a_cluster(broken):
    results, grid = broken
    output = finish_in_processes(*grid, "hydra/launcher=submitit_local")
    assert {length: record["status"] for length, record in by_length(results).items()} == {16: "finished", 24: "failed"}
    assert "FAILED attn icr" in output and "1 of 2 runs failed" in output
    assert (results / "report" / "official" / "accuracy.md").exists()


@pytest.mark.parametrize(
    ("override", "fix"),
    [
        ("task.setting=nope", "choose baseline"),
        ("optimizer.lr=-1", "above 0"),
        ("trainer.epochs=1,abc", "must be a whole number"),
        ("mixer.num_heads=2,two", "must be a whole number"),
        ("results_dir=null", "must be the name of a folder"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line(override, fix):
    outcome = run_py("-m", "mixer=attn", "task=icr", override)
    assert outcome.code == 1 and fix in outcome.err and not outcome.out
    assert "Traceback" not in outcome.err and len(outcome.err.splitlines()) < 5


@pytest.mark.parametrize("launcher", ["slurm", "ray_tasks"])
def test_cluster_launchers_compose(launcher):
    if launcher == "slurm":
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [f"hydra/launcher={launcher}"], return_hydra_config=True)
    chosen = cfg.hydra.launcher
    assert chosen._target_.endswith({"slurm": "SlurmLauncher", "ray_tasks": "RayTaskLauncher"}[launcher])
    assert (chosen.gpus_per_node if launcher == "slurm" else chosen.ray.remote.num_gpus) == 1


def test_one_run_is_counted_in_the_singular(tmp_path):
    done = [SweepProgress(dict.fromkeys(map(Path, names), 1.0))._done() for names in ("a", "ab")]
    assert done == ["0 of 1 run done", "0 of 2 runs done"]


def test_a_sweep_has_a_name_for_its_report(tmp_path, monkeypatch):
    monkeypatch.setattr("mixerlab.sweeps.figures.canvas.save", lambda figure, stem, *_: [stem.with_suffix(".png")])
    outcome = run_py(
        "-m", "mixer=attn", "task=icr", "sweep=heads", "mixer.num_heads=2,4", *TINY, f"results_dir={tmp_path}"
    )
    assert "| attn, num_heads=2 |" in outcome.out and "| attn, num_heads=4 |" in outcome.out
    assert f"again, or by other keys: mixerlab report {tmp_path} --sweep heads" in outcome.out
    assert set(json.loads((tmp_path / "sweeps/heads.json").read_text())["runs"]) == set(records(tmp_path))
    more = run_py("-m", "mixer=attn", "task=icr", "sweep=heads", "mixer.num_heads=1", *TINY, f"results_dir={tmp_path}")
    assert f"with 2 other runs of this sweep: mixerlab report {tmp_path} --sweep heads" in more.out
    refused = run_py("-m", "mixer=attn", "task=icr", "sweep=../heads", f"results_dir={tmp_path}")
    assert refused.code == 1 and "sweep='../heads' must be a name of letters" in refused.err


def test_an_experiment_in_a_folder_names_its_sweep():
    config = OmegaConf.create({"sweep": None, "hydra": {"runtime": {"choices": {"experiment": "mine/wide"}}}})
    assert Sweep.note(SimpleNamespace(config=config), []) == "mine-wide"


def test_a_full_disk_before_a_sweep_trains_is_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mixerlab.sweeps.launch.sweep.write_sweep", full)
    outcome = run_py("-m", "mixer=attn", "task=icr", *TINY, f"results_dir={tmp_path}")
    assert outcome.code == 1 and outcome.err.splitlines() == ["error: [Errno 28] No space left on device"]
