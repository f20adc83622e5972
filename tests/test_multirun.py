"""`python run.py -m`: a sweep ends in tables and figures, outlives failures and kills, and repeats nothing."""

import json
import os
import random
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from command_line import ROOT, TINY, records, run_py, start_run_py
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from mixerlab.postponed import postponed
from mixerlab.sweep import Sweep
from mixerlab.sweep_progress import SweepProgress
from mixerlab.sweeps.claims import claim
from mixerlab.sweeps.files import run_folder
from mixerlab.sweeps.schema import validate_record

GRID = ("-m", "mixer=attn,gdn", "task=icr,cmp", *TINY)
CELLS = [("attn", "cmp"), ("attn", "icr"), ("gdn", "cmp"), ("gdn", "icr")]


def statuses(results_dir):
    """{(mixer, task): status}, of valid records only."""
    found = {}
    for record in records(results_dir).values():
        validate_record(record)
        found[record["rows"][0]["mixer"], record["rows"][0]["task"]] = record["status"]
    return found


def test_a_sweep_ends_in_tables_and_figures(tmp_path):
    outcome = run_py(*GRID, f"results_dir={tmp_path}")
    assert outcome.code == 0
    assert "4 cells: 0 finished already, 4 to run" in outcome.out and "4 of 4 runs done" in outcome.err
    assert f"tables and figures: {tmp_path / 'report'}" in outcome.out
    assert statuses(tmp_path) == dict.fromkeys(CELLS, "finished")
    assert not list(tmp_path.glob("runs/*/*.safetensors"))

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
    assert outcome.code == 1 and "1 of 2 cells failed" in outcome.err and "Traceback" not in outcome.err
    assert "FAILED attn icr vocab_size=8,seq_len=24" in outcome.err and "ArithmeticError: no such length" in outcome.err
    before = by_length(results)
    assert {length: record["status"] for length, record in before.items()} == {16: "finished", 24: "failed"}
    assert "failed" in (results / "report" / "official" / "settings.md").read_text()

    time.sleep(1)  # `started_at` counts seconds
    again = run_py(*grid)
    assert again.code == 1 and "2 cells: 1 finished already, 1 to run" in again.out
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


def dry_run(*overrides, results_dir):
    """(mixer, task, setting) of the cells that a sweep would run, and its last line."""
    outcome = run_py("-m", *overrides, "dry_run=true", f"results_dir={results_dir}")
    assert outcome.code == 0 and not records(results_dir)
    *lines, total = outcome.out.splitlines()
    assert all(line.endswith("to run") for line in lines)
    assert len({line.split()[0] for line in lines}) == len(lines)  # every cell a run of its own
    return [tuple(line.split()[1:4]) for line in lines], total


@pytest.mark.slow
def test_the_table_is_66_settings_of_five_mixers(tmp_path):
    cells, total = dry_run("experiment=mad_table", results_dir=tmp_path)
    assert total == "330 cells, 0 of them finished" and len(set(cells)) == 330
    assert {mixer for mixer, _, _ in cells} == {"attn", "parallax", "gdn", "mamba", "mesa"}
    by_task = pd.Series([task for mixer, task, _ in cells if mixer == "attn"]).value_counts().to_dict()
    assert by_task == {"icr": 11, "ncr": 14, "fcr": 11, "mem": 6, "cmp": 11, "sc": 13}


@pytest.mark.slow
def test_the_frontier_is_four_tasks_at_three_lengths(tmp_path):
    cells, total = dry_run("experiment=frontier", results_dir=tmp_path)
    assert total == "60 cells, 0 of them finished" and len(set(cells)) == 60
    assert {mixer for mixer, _, _ in cells} == {"attn", "parallax", "gdn", "mamba", "mesa"}
    of_attn = {(task, setting) for mixer, task, setting in cells if mixer == "attn"}
    rows = "num_train_examples=100000"  # what the levels of the first two have anyway
    bases = {"state_tracking": "S3-128", "mqar": "8-128", "icr": rows, "ncr": rows}
    assert of_attn == {
        (task, base + longer)
        for task, base in bases.items()
        for longer in ("", ",test_seq_len=256", ",test_seq_len=512")
    }


@pytest.mark.slow
def test_the_challenge_is_nine_cells_of_five_mixers(tmp_path):
    cells, total = dry_run("experiment=challenge", results_dir=tmp_path)
    assert total == "45 cells, 0 of them finished"
    assert ("mesa", "sc_challenge", "512-2048") in cells


def test_mixer_and_task_narrow_an_experiment(tmp_path):
    cells, _ = dry_run("experiment=mad_table", "mixer=attn", "task=mem,sc", results_dir=tmp_path)
    assert len(cells) == 6 + 13 and {cell[:2] for cell in cells} == {("attn", "mem"), ("attn", "sc")}
    cells, _ = dry_run("mixer=attn", "task=icr", "task.setting=baseline,seq_len-512", results_dir=tmp_path)
    assert cells == [("attn", "icr", "baseline"), ("attn", "icr", "seq_len-512")]


def finish_in_processes(*arguments):
    """The outcome of `python run.py` with workers of its own; a cell fails."""
    process = start_run_py(*arguments)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    return output


@pytest.mark.slow
def test_submitit_as_on_a_cluster(broken):
    results, grid = broken
    output = finish_in_processes(*grid, "hydra/launcher=submitit_local")
    assert {length: record["status"] for length, record in by_length(results).items()} == {16: "finished", 24: "failed"}
    assert "FAILED attn icr" in output and "1 of 2 cells failed" in output
    assert (results / "report" / "official" / "accuracy.md").exists()


@pytest.mark.slow
def test_two_sweeps_on_one_folder_train_each_cell_once(tmp_path):
    grid = ("-m", "mixer=attn", "task=icr,cmp", *TINY, f"results_dir={tmp_path}")
    processes = [start_run_py(*grid) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert statuses(tmp_path) == {("attn", "icr"): "finished", ("attn", "cmp"): "finished"}
    # Whoever came second waited for the first: both report every cell.
    for output in outputs:
        assert "missing" not in output and "tables and figures" in output
    assert not list(tmp_path.glob("runs/*/resume-*"))


@pytest.mark.slow
def test_a_sweep_says_that_it_waits_for_what_others_train(tmp_path):
    grid = ("-m", "mixer=attn", "task=icr", *TINY, f"results_dir={tmp_path}")
    run_id = run_py(*grid, "dry_run=true").out.split()[0]
    with claim(run_folder(tmp_path, run_id)) as ours:
        assert ours
        process = start_run_py(*grid)
        in_vain = threading.Timer(120, process.kill)  # it would wait forever
        in_vain.start()
        waits = next(line for line in process.stdout if "other processes train the last 1: waiting for them" in line)
        assert f"process {os.getpid()} on {socket.gethostname()} since " in waits
        in_vain.cancel()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "tables and figures" in output
    assert statuses(tmp_path) == {("attn", "icr"): "finished"}


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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the sweep's processes in /proc")
def test_a_sweep_killed_at_random_moments_ends_like_an_undisturbed_one(tmp_path):
    """SIGKILL for the whole sweep or for one of its processes, whatever they do; then the same command again.

    Other moments every time; a failure prints its seed, and `KILL_SEED=...` draws the same delays and victims again.
    """
    seed = int(os.environ.get("KILL_SEED", random.randrange(2**31)))
    print("seed", seed)
    draw = random.Random(seed)
    grid = ("-m", "mixer=attn", "task=icr,cmp", *TINY, "trainer.epochs=40")
    # Both by processes: each gets its share of the threads, and sums depend on their number in the last bits.
    grid = (*grid, "hydra/launcher=processes", "hydra.launcher.n_jobs=2")
    undisturbed = start_run_py(*grid, f"results_dir={tmp_path / 'undisturbed'}")
    output, _ = undisturbed.communicate(timeout=300)
    assert undisturbed.returncode == 0, output

    command = (*grid, f"results_dir={tmp_path / 'killed'}")
    finished = {}
    for _ in range(2):
        process = start_run_py(*command)
        left_over = set((tmp_path / "killed").glob("runs/*/resume-*"))
        while process.poll() is None and left_over == set((tmp_path / "killed").glob("runs/*/resume-*")):
            time.sleep(0.01)  # until training has begun: starting up is most of this command's time
        time.sleep(draw.uniform(0, 2))
        victims = _processes_of_group(process.pid)
        _kill(victims if draw.random() < 0.5 else draw.sample(victims, min(1, len(victims))))
        try:
            process.wait(timeout=300)  # without one of its workers a sweep goes on
        finally:
            _kill(_processes_of_group(process.pid))
            output = process.stdout.read()
            process.stdout.close()
        if process.returncode != -signal.SIGKILL:
            # 1 if the victim trained a cell, which has failed then.
            assert process.returncode in (0, 1) and "tables and figures" in output, output
            assert process.returncode == 0 or "its process was killed by SIGKILL" in output
        after = records(tmp_path / "killed")
        assert all(after[run_id] == record for run_id, record in finished.items())  # not trained again
        finished |= {run_id: record for run_id, record in after.items() if record["status"] == "finished"}
    process = start_run_py(*command)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert f"2 cells: {len(finished)} finished already, {2 - len(finished)} to run" in output
    assert set(statuses(tmp_path / "killed").values()) == {"finished"}
    assert all(records(tmp_path / "killed")[run_id] == record for run_id, record in finished.items())
    undisturbed, killed = (
        {path.parent.name: path.read_text() for path in tmp_path.glob(f"{sweep}/runs/*/metrics.csv")}
        for sweep in ("undisturbed", "killed")
    )
    assert len(killed) == 2 and killed == undisturbed


FATAL = """
import os, signal
from mixerlab.mixers.attn import Attention

class Fatal(Attention):
    def forward(self, x):
        if x.shape[1] == 24 - 1:  # task.seq_len=24
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""


@pytest.mark.slow
def test_a_cell_that_kills_its_process_fails_alone(tmp_path, monkeypatch):
    (tmp_path / "fatal.py").write_text(FATAL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    grid = ("-m", "mixer=attn", "mixer._target_=fatal.Fatal", "task=icr", *TINY, "task.seq_len=8,16,24")
    command = (*grid, "hydra/launcher=processes", "hydra.launcher.n_jobs=2", f"results_dir={tmp_path}")
    output = finish_in_processes(*command)
    (failed,) = (line for line in output.splitlines() if line.startswith("FAILED"))
    assert failed.startswith("FAILED attn icr vocab_size=8,seq_len=24") and "SIGKILL" in failed
    assert "1 of 3 cells failed" in output and "Traceback" not in output
    finished = records(tmp_path)
    lengths = {record["rows"][0]["hparams"]["task.seq_len"] for record in finished.values()}
    assert lengths == {8, 16} and {record["status"] for record in finished.values()} == {"finished"}
    assert (tmp_path / "report" / "official" / "accuracy.md").exists()


@pytest.mark.parametrize(
    "launcher",
    [pytest.param([], marks=pytest.mark.slow), ["hydra/launcher=processes", "hydra.launcher.n_jobs=2"]],
    ids=len,
)
def test_a_sweep_that_is_interrupted_says_how_it_goes_on(tmp_path, launcher):
    options = "trainer.epochs=100000", "trainer.checkpoint_every=1"  # most of the time it writes none
    process = start_run_py("-m", "mixer=attn", "task=icr", *TINY, *options, f"results_dir={tmp_path}", *launcher)
    while not list(tmp_path.glob("runs/*/resume-*.ckpt")):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT: the same command goes on from the last checkpoint" in output and not records(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the sweep's processes in /proc")
def test_the_processes_of_a_killed_sweep_end_with_it(tmp_path):
    """A worker that trained on would hold its run, and its GPU."""
    grid = ("-m", "mixer=attn", "task=icr", *TINY, "trainer.epochs=100000", f"results_dir={tmp_path}")
    process = start_run_py(*grid, "hydra/launcher=processes", "hydra.launcher.n_jobs=2")
    try:
        while not list(tmp_path.glob("runs/*/resume-*")):
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.1)
        (folder,) = tmp_path.glob("runs/*")
        process.kill()  # only the sweep, not its group
        for _ in range(100):
            with claim(folder) as ours:
                if ours:
                    break
            time.sleep(0.1)
        assert ours, "the worker trains on"
    finally:
        _kill(_processes_of_group(process.pid))
        process.wait()
        process.stdout.close()


def _kill(processes: list[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # it ended by itself
            os.kill(process, signal.SIGKILL)


def _processes_of_group(group: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(ProcessLookupError):
            if os.getpgid(int(name)) == group:
                found.append(int(name))
    return sorted(found)


@pytest.mark.parametrize("launcher", ["slurm", "ray_tasks"])
def test_cluster_launchers_compose(launcher):
    if launcher == "slurm":
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [f"hydra/launcher={launcher}"], return_hydra_config=True)
    chosen = cfg.hydra.launcher
    assert chosen._target_.endswith({"slurm": "SlurmLauncher", "ray_tasks": "RayTaskLauncher"}[launcher])
    assert (chosen.gpus_per_node if launcher == "slurm" else chosen.ray.remote.num_gpus) == 1


def test_a_key_that_only_some_cells_have_runs_where_it_applies(tmp_path):
    grid = ("mixer=attn", "task=icr,sc", "task.num_tokens_to_copy=8,12")
    outcome = run_py("-m", *grid, "dry_run=true", f"results_dir={tmp_path}")
    line, *cells, _ = outcome.out.splitlines()
    assert line == ("task.num_tokens_to_copy=8,12 applies to sc; without it, as they have no such key, run: icr")
    assert [cell.split()[2:4] for cell in cells] == [
        ["icr", "baseline"],
        ["sc", "num_tokens_to_copy=8"],
        ["sc", "num_tokens_to_copy=12"],
    ]
    for override, applies in {"task.num_tokens_to_copy=8": "sc", "mixer.num_heads=4": "attn"}.items():
        outcome = run_py("-m", "mixer=attn,mamba", "task=icr,sc", override, "dry_run=true", f"results_dir={tmp_path}")
        assert outcome.code == 0 and f"{override} applies to {applies}; without it" in outcome.out
    typing_error = run_py("-m", "mixer=attn", "task=icr,sc", "task.num_token=8", f"results_dir={tmp_path}")
    assert typing_error.code == 1 and "unknown key task.num_token;" in typing_error.err


def test_one_run_is_counted_in_the_singular(tmp_path):
    done = [SweepProgress(dict.fromkeys(map(Path, names), 1.0))._done() for names in ("a", "ab")]
    assert done == ["0 of 1 run done", "0 of 2 runs done"]


def test_a_dry_run_tells_its_runs_apart_by_the_swept_keys(tmp_path):
    """Of the keys of a task, only those that its setting does not say; of a single run none."""
    where = ("dry_run=true", f"results_dir={tmp_path}")
    grid = ("mixer=attn,mamba", "task=icr", "mixer.num_heads=2,4", "seed=0,1", "model.d_model=32")
    _, *cells, total = run_py("-m", *grid, *where).out.splitlines()
    assert [line[14:].rstrip("untor ").rstrip() for line in cells] == [
        "attn icr baseline, num_heads=2, seed=0",
        "attn icr baseline, num_heads=2, seed=1",
        "attn icr baseline, num_heads=4, seed=0",
        "attn icr baseline, num_heads=4, seed=1",
        "mamba icr baseline, seed=0",
        "mamba icr baseline, seed=1",
    ]
    assert total == "6 cells, 0 of them finished"
    one, total = run_py("-m", "mixer=attn", "task=icr", "seed=0", *where).out.splitlines()
    assert one.split()[1:] == ["attn", "icr", "baseline", "to", "run"] and total == "1 cell, 0 of them finished"
    first, second, _ = run_py("-m", "mixer=attn", "task=icr", "task.seq_len=64,96", *where).out.splitlines()
    assert [line.split()[1:4] for line in (first, second)] == [
        ["attn", "icr", f"seq_len={length}"] for length in (64, 96)
    ]
    cells = run_py("-m", "mixer=attn", "task=icr", "optimizer=muon,adamw", *where).out.splitlines()[:2]
    assert [line.split()[4] for line in cells] == ["optimizer=muon", "optimizer=adamw"]


def test_a_sweep_has_a_name_for_its_report(tmp_path, monkeypatch):
    monkeypatch.setattr("mixerlab.sweeps.canvas.save", lambda figure, stem, *_: [stem.with_suffix(".png")])
    outcome = run_py(
        "-m", "mixer=attn", "task=icr", "sweep=heads", "mixer.num_heads=2,4", *TINY, f"results_dir={tmp_path}"
    )
    assert "| attn, num_heads=2 |" in outcome.out and "| attn, num_heads=4 |" in outcome.out
    assert f"again, or by other keys: mixerlab report {tmp_path} --sweep heads" in outcome.out
    assert set(json.loads((tmp_path / "sweeps/heads.json").read_text())["run_ids"]) == set(records(tmp_path))
    refused = run_py("-m", "mixer=attn", "task=icr", "sweep=../heads", f"results_dir={tmp_path}")
    assert refused.code == 1 and "sweep='../heads' must be a name of letters" in refused.err


def test_an_experiment_in_a_folder_names_its_sweep():
    config = OmegaConf.create({"sweep": None, "hydra": {"runtime": {"choices": {"experiment": "mine/wide"}}}})
    assert Sweep.note(SimpleNamespace(config=config), []) == "mine-wide"


def test_a_full_disk_before_a_sweep_trains_is_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mixerlab.sweep.write_sweep", full)
    outcome = run_py("-m", "mixer=attn", "task=icr", *TINY, f"results_dir={tmp_path}")
    assert outcome.code == 1 and outcome.err.splitlines() == ["error: [Errno 28] No space left on device"]


def test_a_key_that_not_all_cells_have_is_left_to_them():
    """Beside what is no override: options and their values."""
    given = [
        "--config-dir",
        "/a/conf",
        "-m",
        "mixer=hybrid,attn",
        "mixer.layers=[attn,gdn]",
        "task=icr",
        "task.seq_len=8",
    ]
    changed = [argument for argument in postponed(given) if argument not in given]
    assert changed == ["mixer.layers=choice([attn,gdn])"] and len(postponed(given)) == len(given)
