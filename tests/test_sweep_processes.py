"""Processes of sweeps: side by side on one results folder, interrupted, and killed at any moment."""

import multiprocessing
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import trainers
from command_line import TINY, records, run_py, start_run_py, statuses

from mixerlab.records.claims import claim
from mixerlab.sweeps.launch.processes import Processes

IN_TWO = ("hydra/launcher=processes", "hydra.launcher.n_jobs=2")
IN_PROC = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the sweep's processes in /proc")


def test_a_cell_that_fails_or_kills_its_process_fails_alone():
    whats = ["first", "second", "raise", "third", "exit", "interrupt", "kill", "kill with child", "last"]
    executor = Processes(trainers.train, 1)
    ended = trainers.all_ended(executor, [trainers.cell(what) for what in whats])
    executor.stop()
    errors = {what: one.error for what, one in ended.items()}
    assert errors["raise"] == "no such length" and errors["exit"] == "SystemExit: 0"
    assert errors["interrupt"] == "KeyboardInterrupt"
    assert errors["kill"] == errors["kill with child"] == "its process was killed by SIGKILL"
    pids = {what: one.run_id for what, one in ended.items() if one.error is None}
    assert pids["first"] == pids["second"] != pids["third"]  # a process that failed may have lost its GPU
    assert not multiprocessing.active_children()


def test_a_sweep_counts_the_cores_that_it_may_use(monkeypatch):
    """Not those of the host, of which taskset, Slurm and containers may give it a few."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 3, 5, 7, 9, 11}, raising=False)
    executor = Processes(trainers.train)
    assert (executor.slots, executor.threads) == (3, 2)
    with pytest.raises(ValueError, match=r"hydra.launcher.n_jobs=0 must be"):
        Processes(trainers.train, n_jobs=0)


@pytest.mark.slow
def test_two_sweeps_on_one_folder_train_each_cell_once(tmp_path):
    grid = ("-m", "mixer=attn", "task=icr,cmp", *TINY, f"results_dir={tmp_path}")
    started = [start_run_py(*grid) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    assert statuses(tmp_path) == {("attn", "icr"): "finished", ("attn", "cmp"): "finished"}
    # Whoever came second waited for the first: both report every cell.
    for output in outputs:
        assert "missing" not in output and "tables and figures" in output
    assert not list(tmp_path.glob("runs/*/resume-*"))


@IN_PROC
@pytest.mark.slow
@pytest.mark.parametrize(("number", "stop"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill)])
def test_a_sweep_that_is_stopped_ends_with_its_processes_and_says_how_it_goes_on(tmp_path, number, stop):
    """Ctrl-C reaches the whole group, SIGTERM the sweep alone. A worker that trained on would hold its GPU."""
    process = long_sweep(tmp_path)
    stop(process.pid, number)
    output, _ = process.communicate(timeout=60)
    check_that_its_processes_end(process, tmp_path)
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}: the same command goes on from the last checkpoint" in output
    assert not records(tmp_path)


def long_sweep(results_dir):
    """One by processes that has written a checkpoint, and has nothing finished for hours."""
    options = "trainer.epochs=100000", "trainer.checkpoint_every=1", f"results_dir={results_dir}"
    process = start_run_py("-m", "mixer=attn", "task=icr", *TINY, *options, *IN_TWO)
    wait_until_training(process, results_dir)
    return process


def wait_until_training(process, results_dir):
    """Until a checkpoint is written: starting up is most of a command's time."""
    left_over, until = set(results_dir.glob("runs/*/resume-*")), time.monotonic() + 120
    while process.poll() is None and left_over == set(results_dir.glob("runs/*/resume-*")):
        if time.monotonic() > until:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail("no checkpoint in two minutes")
        time.sleep(0.01)


@IN_PROC
@pytest.mark.slow
def test_a_sweep_killed_at_random_moments_ends_like_an_undisturbed_one(tmp_path):
    """SIGKILL for one of its workers, then for the sweep alone, whatever they do; then the same command again.

    Other moments every time; a failure prints its seed, and `KILL_SEED=...` draws the same delays and victim again.
    """
    seed = int(os.environ.get("KILL_SEED", random.randrange(2**31)))
    print("seed", seed)
    draw = random.Random(seed)
    results = tmp_path / "killed"
    grid = ("-m", "mixer=attn", "task=icr,cmp", *TINY, "trainer.epochs=40")
    command = (*grid, *IN_TWO, f"results_dir={results}")

    process = start_run_py(*command)
    wait_until_training(process, results)
    time.sleep(draw.uniform(0, 1))
    workers = [pid for pid in processes_of_group(process.pid) if pid != process.pid]
    kill(draw.sample(workers, min(1, len(workers))))
    time.sleep(draw.uniform(0, 1))
    kill([process.pid])
    process.communicate(timeout=60)
    check_that_its_processes_end(process, results)
    before = finished(results)

    process = start_run_py(*command)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert f"2 runs: {len(before)} finished already, {2 - len(before)} to run" in output
    after = finished(results)
    assert len(after) == 2 and after.items() >= before.items()  # none was trained again

    # Sums depend on the number of threads in their last bits, and each worker gets its share of them.
    ours = torch.get_num_threads()
    torch.set_num_threads(Processes(trainers.train, 2).threads)
    try:
        assert run_py(*grid, f"results_dir={tmp_path / 'undisturbed'}").code == 0
    finally:
        torch.set_num_threads(ours)
    metrics = [
        {path.parent.name: path.read_text() for path in tmp_path.glob(f"{sweep}/runs/*/metrics.csv")}
        for sweep in ("undisturbed", "killed")
    ]
    assert len(metrics[0]) == 2 and metrics[0] == metrics[1]


def finished(results_dir):
    return {run_id: record for run_id, record in records(results_dir).items() if record["status"] == "finished"}


def check_that_its_processes_end(process, results_dir):
    """And give up the runs that they had."""
    until = time.monotonic() + 10
    while processes_of_group(process.pid):
        assert time.monotonic() < until, "its processes outlive it"
        time.sleep(0.1)
    for folder in results_dir.glob("runs/*"):
        with claim(folder) as ours:
            assert ours


def kill(victims):
    for victim in victims:
        with suppress(ProcessLookupError):  # it ended by itself
            os.kill(victim, signal.SIGKILL)


def processes_of_group(group):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(ProcessLookupError):
            if os.getpgid(int(name)) == group and "Z" not in Path(f"/proc/{name}/stat").read_text().split(") ")[-1][:1]:
                found.append(int(name))
    return sorted(found)
