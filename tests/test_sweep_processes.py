"""Processes of sweeps: side by side on one results folder, interrupted, and killed at any moment."""

import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import deferring_worker
import pytest
from command_line import TINY, finish_in_processes, records, run_py, start_run_py, statuses

from mixerlab import main
from mixerlab.records.claims import claim
from mixerlab.records.files import run_folder
from mixerlab.sweeps.launch import processes as in_processes


def test_a_sweep_counts_the_cores_that_it_may_use(monkeypatch):
    """Not those of the host, of which taskset, Slurm and containers may give it a few."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 3, 5, 7, 9, 11}, raising=False)
    threads = []

    class Started(Exception):
        pass

    def start(its_threads, work):
        threads.append(its_threads)
        raise Started

    monkeypatch.setattr(in_processes, "_Worker", start)
    with pytest.raises(Started):
        in_processes.run_in_processes([[]] * 3, 0, work=None, processes=3)
    assert main._processes() == 3 and threads == [2]
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert main._processes() == 32


def test_all_processes_are_told_to_stop_before_any_is_waited_for(tmp_path, monkeypatch):
    """They defer SIGTERM, as training does that writes a checkpoint: three for ever, one for less than the grace."""
    monkeypatch.setattr(in_processes, "_serve", deferring_worker.serve)
    monkeypatch.setattr(in_processes, "GRACE", 2.0)
    stopped_at = []

    def interrupted(connections):
        until = time.monotonic() + 120
        while len(list(tmp_path.glob("ready-*"))) < len(connections):
            assert time.monotonic() < until, "the processes do not start"
            time.sleep(0.01)
        stopped_at.append(time.monotonic())
        raise KeyboardInterrupt

    monkeypatch.setattr(in_processes, "wait", interrupted)
    jobs = [[str(tmp_path), seconds] for seconds in ("60", "60", "60", "0.1")]
    with pytest.raises(KeyboardInterrupt):
        in_processes.run_in_processes(jobs, 0, work=None, processes=4)
    assert 2 <= time.monotonic() - stopped_at[0] < 5  # one grace, not one for each
    assert [path.name for path in tmp_path.glob("saved-*")] == ["saved-3"]
    assert not multiprocessing.active_children()


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
        waits = next(line for line in process.stdout if "waiting for 1 run that other processes train" in line)
        assert f"process {os.getpid()} on {socket.gethostname()} since " in waits
        in_vain.cancel()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "tables and figures" in output
    assert statuses(tmp_path) == {("attn", "icr"): "finished"}


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
    assert f"2 runs: {len(finished)} finished already, {2 - len(finished)} to run" in output
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
    assert "1 of 3 runs failed" in output and "Traceback" not in output
    finished = records(tmp_path)
    lengths = {record["rows"][0]["hparams"]["task.seq_len"] for record in finished.values()}
    assert lengths == {8, 16} and {record["status"] for record in finished.values()} == {"finished"}
    assert (tmp_path / "report" / "official" / "accuracy.md").exists()


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
