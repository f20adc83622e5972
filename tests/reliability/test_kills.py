"""A run and a sweep stopped at their file operations: the same command completes, with the same records."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY

KILLED = Path(__file__).with_name("killed.py")
RUN = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=2")
SWEEP = ("-m", "mixer=attn", "task=icr,cmp", *TINY, "trainer.epochs=1")

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the names of open files in /proc")


def stopped(folder, ways, arguments):
    command = [sys.executable, str(KILLED), str(folder), ways, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    print(outcome)
    return outcome


def test_a_run_stopped_at_a_few_file_operations_completes(tmp_path):
    outcome = stopped(tmp_path, "KILL=50,TERM=60", RUN)
    assert outcome["operations"] > 30 and outcome["records"] == 1 and outcome["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["KILL=7", "TERM=8,INT=8,FULL=8"])
def test_a_run_stopped_at_many_file_operations_completes(tmp_path, ways):
    """`python tests/reliability/killed.py FOLDER KILL=1 mixer=attn ...` stops it at every one."""
    outcome = stopped(tmp_path, ways, RUN)
    assert outcome["operations"] > 30 and outcome["records"] == 1 and outcome["wrong"] == []


def test_a_training_by_force_stopped_at_a_few_file_operations_leaves_each_run_whole(tmp_path):
    outcome = stopped(tmp_path, "KILL=22,TERM=50", (*RUN, "force=true"))
    assert outcome["operations"] > 50 and outcome["records"] == 1 and outcome["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("ways", "command"), [("KILL=11,TERM=37", RUN), ("KILL=61", SWEEP)])
def test_a_training_by_force_stopped_at_many_file_operations_leaves_each_run_whole(tmp_path, ways, command):
    outcome = stopped(tmp_path, ways, (*command, "force=true"))
    assert outcome["operations"] > 50 and outcome["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["KILL=31", "TERM=61,INT=71,FULL=41"])
def test_a_sweep_stopped_at_many_file_operations_completes(tmp_path, ways):
    outcome = stopped(tmp_path, ways, SWEEP)
    assert outcome["operations"] > 60 and outcome["records"] == 2 and outcome["wrong"] == []
