"""Processes of sweeps: side by side on one results folder, interrupted, and killed at any moment."""

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
import trainers
from command_line import TINY, records, start_run_py, statuses

from mixerlab.records.claims import claim
from mixerlab.sweeps.launch.processes import Processes

IN_TWO = ("hydra/launcher=processes", "hydra.launcher.n_jobs=2")


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


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the sweep's processes in /proc")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "stop"), [(signal.SIGINT, os.killpg), (signal.SIGTERM, os.kill), (signal.SIGKILL, os.kill)]
)
def test_a_sweep_that_is_stopped_ends_with_its_processes_and_says_how_it_goes_on(tmp_path, number, stop):
    """Ctrl-C reaches the whole group, others the sweep alone. A worker that trained on would hold its GPU.

    It is stopped when it has written a checkpoint, and has nothing finished for hours.
    """
    options = "trainer.epochs=100000", "trainer.checkpoint_every=1", f"results_dir={tmp_path}"
    process = start_run_py("-m", "mixer=attn", "task=icr", *TINY, *options, *IN_TWO)
    until = time.monotonic() + 120
    while process.poll() is None and not list(tmp_path.glob("runs/*/resume-*")) and time.monotonic() < until:
        time.sleep(0.01)
    assert list(tmp_path.glob("runs/*/resume-*"))
    stop(process.pid, number)
    output, _ = process.communicate(timeout=60)
    until = time.monotonic() + 10
    while processes_of_group(process.pid):
        assert time.monotonic() < until, "its processes outlive it"
        time.sleep(0.1)
    (folder,) = tmp_path.glob("runs/*")
    with claim(folder) as ours:
        assert ours
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    told = f"stopped by {number.name}: the same command goes on from the last checkpoint"
    assert (told in output) == (number != signal.SIGKILL) and not records(tmp_path)


def processes_of_group(group):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(ProcessLookupError):
            if os.getpgid(int(name)) == group and "Z" not in Path(f"/proc/{name}/stat").read_text().split(") ")[-1][:1]:
                found.append(int(name))
    return found
