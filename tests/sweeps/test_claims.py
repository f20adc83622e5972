"""A claim holds while its process lives, whatever kills it; no cell is lost and none runs twice at once."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import fake_sweep
import fakes
import pytest

from mixerlab.records.claims import claim
from mixerlab.records.files import read_record, run_folder
from mixerlab.records.identity import run_id

HOLDER = """
import sys, time
from mixerlab.records.claims import claim
with claim(sys.argv[1]) as ours:
    print(ours, flush=True)
    time.sleep(60)
"""

PARENT = """
import os, sys, time
from mixerlab.records.claims import claim
with claim(sys.argv[1]):
    ready, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(ready, 1)
    print(child, flush=True)
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
    with claim(tmp_path / "new") as again:
        assert again


def test_a_claim_ends_with_an_exception(tmp_path):
    with pytest.raises(RuntimeError, match="boom"), claim(tmp_path):
        raise RuntimeError("boom")
    with claim(tmp_path) as ours:
        assert ours


def test_patience_outlasts_a_look_at_the_claim(tmp_path):
    look = claim(tmp_path)
    assert look.__enter__()
    timer = threading.Timer(0.1, look.__exit__, (None, None, None))
    timer.start()
    with claim(tmp_path) as ours:
        assert not ours
    with claim(tmp_path, patience=60) as ours:
        assert ours
        timer.join()
        with claim(tmp_path, patience=0.1) as second:
            assert not second


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_claim_of_a_dead_process_is_taken_over(tmp_path, end):
    holder = start("-c", HOLDER, str(tmp_path))
    try:
        assert holder.stdout.readline() == "True\n"
        with claim(tmp_path) as ours:
            assert not ours
    finally:
        holder.send_signal(end)
        holder.wait(30)
    with claim(tmp_path) as ours:
        assert ours


def test_the_child_of_a_dead_process_does_not_hold_its_claim(tmp_path):
    # A data loader's worker may outlive its killed parent.
    child = None
    parent = start("-c", PARENT, str(tmp_path))
    try:
        child = int(parent.stdout.readline())
        with claim(tmp_path) as ours:
            assert not ours
        parent.kill()
        parent.wait()
        os.kill(child, 0)  # it lives
        with claim(tmp_path) as ours:
            assert ours
    finally:
        parent.kill()
        parent.wait()
        if child is not None:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_keep_a_claim_that_ended(tmp_path):
    for _ in range(20):
        with claim(tmp_path) as ours:
            assert ours
            child = os.fork()
            if child == 0:
                os._exit(0)
        try:
            with claim(tmp_path) as ours:
                assert ours
        finally:
            os.waitpid(child, 0)


def test_a_forked_child_that_leaves_the_block_does_not_end_the_claim(tmp_path):
    block = claim(tmp_path)
    assert block.__enter__()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            block.__exit__(None, None, None)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with claim(tmp_path) as ours:
        assert not ours
    block.__exit__(None, None, None)


def test_the_lock_file_stays(tmp_path):
    # Were it removed, a process waiting with the old file and one that makes a new one would both have it.
    with claim(tmp_path):
        pass
    assert (tmp_path / ".claim").exists()


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

    holder: dict[str, str] = {}  # cell -> the process in it
    ends: list[str] = []
    dead: set[str] = set()
    for line in log.read_text().splitlines():
        event, cell, process = line.split()
        if event == "start":
            # Only the dead leave a cell without ending it, so a former holder writes nothing any more.
            if cell in holder:
                dead.add(holder[cell])
            assert cell not in ends
            holder[cell] = process
        else:
            assert holder.pop(cell) == process
            ends.append(cell)
        assert process not in dead
    cells = [run_id(config) for config in fake_sweep.CELLS]
    assert _starts(log) > len(cells), "no process was killed inside a cell: the test tests nothing"
    for cell, config in zip(cells, fake_sweep.CELLS, strict=True):
        assert read_record(run_folder(tmp_path, cell)) == fakes.record(config, [0.5, 0.6, 0.7])


def _starts(log: Path) -> int:
    return log.read_text().count("start") if log.exists() else 0
