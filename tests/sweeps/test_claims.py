"""A claim holds while its process lives, whatever kills it; no cell is lost and none runs twice at once."""

import errno
import fcntl
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import fake_sweep
import fakes
import pytest

from mixerlab.records.claims import claim, holder, is_claimed
from mixerlab.records.files import read_record, run_folder
from mixerlab.records.identity import run_id

HOLDER = """
import sys, time
from mixerlab.records.claims import claim
with claim(sys.argv[1]) as ours:
    print(ours, flush=True)
    time.sleep(60)
"""


def start(*command: str) -> subprocess.Popen:
    path = os.pathsep.join([str(Path(fakes.__file__).parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
        # A shell lets what it starts in the background ignore SIGINT, and that is inherited.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def test_one_claim_at_a_time_in_one_process(tmp_path):
    with claim(tmp_path / "new") as first:
        assert first
        with claim(tmp_path / "new") as second, claim(tmp_path / "other") as other:
            assert (second, other) == (False, True)
        with claim(tmp_path / "new") as third:
            assert not third  # the failed attempt did not let go of the first
    with pytest.raises(RuntimeError, match="boom"), claim(tmp_path / "new") as again:
        assert again
        raise RuntimeError("boom")
    assert not is_claimed(tmp_path / "new") and (tmp_path / "new/.claim").exists()


def test_patience_outlasts_a_look_at_the_claim(tmp_path):
    look = claim(tmp_path)
    assert look.__enter__()
    timer = threading.Timer(0.1, look.__exit__, (None, None, None))
    timer.start()
    with claim(tmp_path, patience=60) as ours:
        assert ours
        timer.join()
        with claim(tmp_path, patience=0.1) as second:
            assert not second


def test_a_claim_says_who_holds_it(tmp_path):
    assert not is_claimed(tmp_path / "new") and not (tmp_path / "new").exists()  # asking leaves nothing
    with claim(tmp_path) as ours:
        assert ours and is_claimed(tmp_path)
        assert holder(tmp_path).startswith(f"process {os.getpid()} on {socket.gethostname()} since 20")
    (tmp_path / ".claim").write_bytes(b"[" * 5000)
    assert holder(tmp_path) == "a process that has not said which"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    def no_locks(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(ValueError, match=r"the file system has no locks.*results_dir=DIR"), claim(tmp_path):
        pass


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_claim_of_a_dead_process_is_taken_over(tmp_path, end):
    process = start("-c", HOLDER, str(tmp_path))
    try:
        assert process.stdout.readline() == "True\n" and is_claimed(tmp_path)
    finally:
        process.send_signal(end)
        process.wait(30)
    assert not is_claimed(tmp_path)


def test_a_forked_child_does_not_keep_a_claim_that_ended(tmp_path):
    for _ in range(20):
        with claim(tmp_path) as ours:
            assert ours
            child = os.fork()
            if child == 0:
                os._exit(0)
        try:
            assert not is_claimed(tmp_path)
        finally:
            os.waitpid(child, 0)


def test_two_sweeps_killed_at_random_finish_every_cell_once_at_a_time(tmp_path):
    order = random.Random(0)
    log = tmp_path / "log"
    for attempt in range(5):
        before = _starts(log)
        sweeps = [
            multiprocessing.get_context("fork").Process(
                target=fake_sweep.sweep, args=(tmp_path, random.Random(10 * attempt + i))
            )
            for i in range(2)
        ]
        for one in sweeps:
            one.start()
        if attempt < 4:
            while _starts(log) == before:
                time.sleep(0.001)
            time.sleep(order.uniform(0.0, 0.03))
            for one in sweeps:
                one.kill()
        for one in sweeps:
            one.join(timeout=30)
    assert [one.exitcode for one in sweeps] == [0, 0]

    holders: dict[str, str] = {}  # cell -> the process in it
    ends: list[str] = []
    dead: set[str] = set()
    for line in log.read_text().splitlines():
        event, cell, process = line.split()
        if event == "start":
            # Only the dead leave a cell without ending it, so a former holder writes nothing any more.
            if cell in holders:
                dead.add(holders[cell])
            assert cell not in ends
            holders[cell] = process
        else:
            assert holders.pop(cell) == process
            ends.append(cell)
        assert process not in dead
    cells = [run_id(config) for config in fake_sweep.CELLS]
    assert _starts(log) > len(cells), "no process was killed inside a cell: the test tests nothing"
    for cell, config in zip(cells, fake_sweep.CELLS, strict=True):
        assert read_record(run_folder(tmp_path, cell)) == fakes.record(config, [0.5, 0.6, 0.7])


def _starts(log: Path) -> int:
    return log.read_text().count("start") if log.exists() else 0
