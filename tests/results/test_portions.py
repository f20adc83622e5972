"""Lists of jobs in portions: order, time, processes that die; and a list of runs that two folders share."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from mixerlab.records.archive import restore
from mixerlab.results.portions import Job, ended_well, next_job, work_through
from mixerlab.results.train import Archive, jobs_of, main
from mixerlab.tests.sweeps import fakes

ROOT = Path(__file__).parents[2]
JOBS = [Job(name, unit, seconds, name) for name, unit, seconds in (("a1", "a", 5), ("b1", "b", 9), ("a2", "a", 5))]


@pytest.mark.parametrize(
    ("taken", "unit", "left", "expected"),
    [
        ([0, 0, 0], None, 60, 0),
        ([1, 0, 0], "a", 60, 2),  # its own unit first
        ([1, 0, 0], None, 60, 1),  # another process takes a unit that nobody has begun
        ([1, 1, 0], "b", 60, 2),  # or helps with one
        ([1, 0, 0], None, 6, 2),  # what takes longer than is left stays
        ([1, 0, 1], "b", 6, None),
    ],
)
def test_the_next_job(taken, unit, left, expected):
    assert next_job(JOBS, taken, unit, left) == expected


def worker(folder):
    """Each job leaves a file, and `dies`, `fails` or `sleeps` if it is called so."""

    def do(name):
        (folder / name).touch()
        if name == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "fails":
            raise ValueError("no such thing")
        if name == "sleeps":
            time.sleep(100)
        return name.upper()

    return do


def test_what_dies_or_fails_costs_itself_only(tmp_path, capsys):
    jobs = [Job(name, name, 0, name) for name in ("dies", "fails", "one", "other")]
    told = []
    ended = work_through(
        jobs, partial(worker, tmp_path), processes=1, gpus=0, seconds=60, fit=False, done=lambda o: told.append(o.value)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dies", "fails", "one", "other"]
    assert sorted(map(str, told)) == ["None", "None", "ONE", "OTHER"]
    assert not ended_well(ended)
    said = capsys.readouterr().err
    assert "no such thing" in said and "its process ended with -9" in said


def no_setup():
    raise ValueError("no such folder")


def test_processes_that_cannot_start_are_an_error():
    given = {"processes": 2, "gpus": 0, "seconds": 60, "fit": False, "done": lambda _: None}
    with pytest.raises(RuntimeError, match=r"processes ended with \[1, 1\], and jobs are left"):
        work_through([Job("one", "a", 0, "one")], no_setup, **given)


def test_the_time_ends_a_job(tmp_path):
    jobs = [Job("sleeps", "a", 0, "sleeps"), Job("late", "b", 0, "late")]
    began = time.monotonic()
    ended = work_through(
        jobs, partial(worker, tmp_path), processes=1, gpus=0, seconds=3, fit=False, done=lambda _: None
    )
    assert (ended, [path.name for path in tmp_path.iterdir()]) == ([], ["sleeps"])
    assert time.monotonic() - began < 10


def test_an_archive_is_written_when_it_is_due_and_a_run_has_ended(tmp_path):
    archive = Archive(tmp_path, tmp_path / "archive.tar.xz")
    fakes.add_run(tmp_path, [0.5], lr=[1e-3])
    archive.write_if_due()
    assert not archive.file.exists()
    archive.due = 0
    archive.write_if_due()
    assert restore(archive.file, tmp_path / "elsewhere") == (1, 0)
    assert archive.due - time.monotonic() == pytest.approx(Archive.LEAST_S, abs=5)
    empty = Archive(tmp_path / "nothing", tmp_path / "empty.tar.xz")
    empty.write()
    assert not empty.file.exists()


TINY = ["task.num_train_examples=64", "task.num_test_examples=32", "task.num_val_examples=32", "trainer.batch_size=16"]
TINY += ["trainer.epochs=2", "model.d_model=16", "task.seq_len=16", "trainer.checkpoint_every=0"]


@pytest.mark.slow  # three processes that import PyTorch
def test_a_list_goes_on_from_its_archive_elsewhere(tmp_path):
    """Stopped after its first run, a list is finished in another folder, which trains the rest only."""
    with (tmp_path / "list.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["unit", "overrides", "seconds"])
        writer.writeheader()
        for seed, seconds in ((0, 1), (1, 10_000), (2, 10_000)):
            writer.writerow({"unit": "a", "overrides": f"mixer=attn task=icr seed={seed}", "seconds": seconds})

    def train(folder, *options):
        script = [sys.executable, str(ROOT / "results" / "train.py"), str(tmp_path / "list.csv"), "--processes", "1"]
        given = ["--results-dir", str(tmp_path / folder), "--archive", str(tmp_path / "archive.tar.xz"), *options]
        done = subprocess.run(
            [*script, *given, "--extra", *TINY],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        records = [json.loads(path.read_text()) for path in (tmp_path / folder).glob("runs/*/record.json")]
        return done.stdout, {record["run_id"]: record for record in records}

    said, first = train("here", "--seconds", "120", "--fit")
    assert "1 of 3 done" in said and "1 finished run in" in said and len(first) == 1
    said, then = train("there", "--seconds", "120")
    assert "1 run restored" in said and "3 finished runs" in said and len(then) == 3
    assert first.items() <= then.items()
    (log,) = (tmp_path / "here" / "logs").iterdir()
    assert log.read_text().startswith("mixer=attn task=icr seed=0\n")


@pytest.mark.slow  # two processes that import PyTorch
def test_a_portion_that_is_told_to_stop_keeps_what_has_ended(tmp_path):
    with (tmp_path / "list.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["unit", "overrides"])
        writer.writeheader()
        for epochs in (2, 1_000_000):
            writer.writerow({"unit": "a", "overrides": f"mixer=attn task=icr trainer.epochs={epochs}"})
    script = [sys.executable, str(ROOT / "results" / "train.py"), str(tmp_path / "list.csv"), "--processes", "1"]
    given = ["--results-dir", str(tmp_path), "--archive", str(tmp_path / "archive.tar.xz"), "--seconds", "300"]
    tiny = [text for text in TINY if not text.startswith("trainer.epochs")]
    process = subprocess.Popen([*script, *given, "--extra", *tiny], env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        while not (list(tmp_path.glob("runs/*/record.json")) and list(tmp_path.glob("runs/*/resume-*.ckpt"))):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
    checkpoint = next(tmp_path.glob("runs/*/resume-*.ckpt"))
    written = checkpoint.stat().st_mtime_ns
    assert restore(tmp_path / "archive.tar.xz", tmp_path / "elsewhere") == (1, 0)
    time.sleep(0.5)
    assert checkpoint.stat().st_mtime_ns == written  # its process has ended too


def test_the_pace_is_of_the_seconds_of_a_list(tmp_path):
    (tmp_path / "list.csv").write_text("unit,overrides,seconds\na,mixer=attn,30\na,mixer=gdn,\n")
    assert [job.seconds for job in jobs_of(tmp_path / "list.csv", pace=0.5)] == [15, 0]
    assert [job.seconds for job in jobs_of(tmp_path / "list.csv")] == [30, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "1", "--seconds", "20", "--fit"], "none of 1 runs fits, the shortest takes 30 s"),
        (["--processes", "0", "--seconds", "20"], "--processes 0 must be above 0"),
        (["other.csv", "--processes", "1", "--seconds", "20"], "there is no list other.csv"),
    ],
)
def test_a_portion_that_can_train_nothing_is_refused(tmp_path, monkeypatch, capsys, options, message):
    path = tmp_path / "list.csv"
    path.write_text("unit,overrides,seconds\na,mixer=attn,30\n")
    monkeypatch.setattr("sys.argv", ["train.py", str(path), *options, f"--results-dir={tmp_path / 'results'}"])
    with pytest.raises(SystemExit):
        main()
    assert message in capsys.readouterr().err and not (tmp_path / "results").exists()
