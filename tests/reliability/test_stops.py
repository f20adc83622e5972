"""Stopped runs and sweeps end at once, take their processes with them, say how to go on, and lose no report."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import TINY, records, run_py, start_run_py

from mixerlab.records.interruption import GOES_ON, Terminated, interruptions_unwrapped
from mixerlab.sweeps.figures import sheet
from mixerlab.sweeps.report import report

ATTN = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=1")
IN_PROC = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the sweep's processes in /proc")

INTERRUPTS = """
import {module}
from mixerlab.mixers.attn import Attention

class Interrupts(Attention):
    def forward(self, x):
        if x.shape[1] == 24 - 1:  # task.seq_len=24
            {what}
        return super().forward(x)
"""


def processes_of_group(group):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(ProcessLookupError):
            if os.getpgid(int(name)) == group:
                found.append(int(name))
    return found


@IN_PROC
@pytest.mark.parametrize(
    "after", [0, pytest.param(0.5, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_the_processes_of_a_sweep_end_with_it_while_they_start(tmp_path, after):
    process = start_run_py(
        "-m", *ATTN, "task.seq_len=16,24", "trainer.epochs=100000", f"results_dir={tmp_path}",
        "hydra/launcher=processes", "hydra.launcher.n_jobs=2",
    )  # fmt: skip
    try:
        while len(processes_of_group(process.pid)) < 2:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.01)
        time.sleep(after)
        process.kill()  # the sweep only, not its group
        process.wait()
        until = time.monotonic() + 60
        while (left := processes_of_group(process.pid)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not left, "processes outlive their sweep"
    finally:
        for pid in processes_of_group(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.stdout.close()


def test_ctrl_c_while_results_are_shown_is_one_line(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sheet, "save", interrupted)
    monkeypatch.setattr(report, "collect", interrupted)
    for start in ((), ("-m",)):
        outcome = run_py(*start, *ATTN, f"results_dir={tmp_path}")
        assert outcome.code == 128 + signal.SIGINT and "Traceback" not in outcome.err
        assert outcome.err.splitlines()[-1] == f"stopped by SIGINT: the same command {GOES_ON}"
    assert {record["status"] for record in records(tmp_path).values()} == {"finished"}


BECOMES_AN_ERROR = """if torch.is_grad_enabled():
                try:
                    raise KeyboardInterrupt
                finally:
                    raise RuntimeError("half a step")"""


@pytest.mark.parametrize("what", ["raise KeyboardInterrupt", BECOMES_AN_ERROR], ids=["plain", "becomes an error"])
def test_an_interrupt_in_the_users_code_is_no_failed_run(tmp_path, monkeypatch, what):
    name = f"interrupts_{len(what)}"
    (tmp_path / f"{name}.py").write_text(INTERRUPTS.format(module="torch", what=what))
    monkeypatch.syspath_prepend(tmp_path)
    results = tmp_path / "results"
    mixer = (f"mixer._target_={name}.Interrupts", "task.seq_len=24", f"results_dir={results}")
    outcome = run_py(*ATTN, *mixer)
    assert outcome.code == 128 + signal.SIGINT and "stopped by SIGINT" in outcome.err and not records(results)


@pytest.mark.parametrize("first", [KeyboardInterrupt(), Terminated()])
def test_what_handling_an_interruption_raises_is_no_failed_run(first):
    with pytest.raises(type(first)) as caught, interruptions_unwrapped():
        try:
            try:
                raise first
            finally:
                raise OSError("a file that is not whole")
        except OSError:
            sys.exit(1)
    assert caught.value is first


@pytest.mark.slow
@pytest.mark.parametrize("what", ["raise KeyboardInterrupt", "sys.exit(3)", "os.abort()"])
def test_in_processes_only_the_cell_fails(tmp_path, monkeypatch, what):
    (tmp_path / "interrupts.py").write_text(INTERRUPTS.format(module="os, sys", what=what))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    results = tmp_path / "results"
    process = start_run_py(
        "-m", *ATTN, "mixer._target_=interrupts.Interrupts", "task.seq_len=16,24,32", f"results_dir={results}",
        "hydra/launcher=processes", "hydra.launcher.n_jobs=1",
    )  # fmt: skip
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "1 of 3 runs failed" in output, output
    (failed,) = (line for line in output.splitlines() if line.startswith("FAILED"))
    reason = {"sys.exit(3)": "SystemExit: 3", "os.abort()": "its process was killed by SIGABRT"}
    assert "seq_len=24" in failed and reason.get(what, "KeyboardInterrupt") in failed
    finished = [record for record in records(results).values() if record["status"] == "finished"]
    assert len(finished) == 2


def test_a_sweep_over_two_folders_reports_each_cell_where_it_belongs(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "save", lambda figure, stem, *_: [stem.with_suffix(".png")])
    folders = [tmp_path / "a", tmp_path / "b"]
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    outcome = run_py("-m", *ATTN, f"results_dir={folders[0]},{folders[1]}")
    assert outcome.code == 0 and "2 runs: 0 finished already, 2 to run" in outcome.out
    for folder in folders:
        assert len(records(folder)) == 1 and f"tables and figures: {folder / 'report'}" in outcome.out
        assert "missing" not in (folder / "report" / "official" / "accuracy.md").read_text()
        assert sorted(path.name for path in folder.iterdir()) == ["report", "runs", "sweeps"]
    assert list(records(folders[0])) == list(records(folders[1]))
    assert not list(Path.cwd().iterdir())
    again = run_py("-m", *ATTN, f"results_dir={folders[0]},{folders[1]}")
    assert "2 runs: 2 finished already, 0 to run" in again.out


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mixerlab.train.write_metrics", full)
    outcome = run_py(*ATTN, f"results_dir={tmp_path}")
    assert outcome.code == 1 and not records(tmp_path) and "Traceback" not in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: No space left on device; fix this, then run the same")
    monkeypatch.undo()
    again = run_py(*ATTN, f"results_dir={tmp_path}")
    assert again.code == 0 and "continuing from" in again.err and not list(tmp_path.glob("runs/*/resume-*"))
