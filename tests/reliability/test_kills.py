"""A run and a sweep stopped at random: the same command completes, with the same records to the last byte."""

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
FORCED = (*RUN, "force=true")

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the names of open files in /proc")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stops", "command"),
    [
        ("KILL=10,TERM=3,INT=3,FULL=3", RUN),
        ("KILL=11,TERM=2,FULL=3", FORCED),
        ("KILL=9,TERM=2,INT=2,FULL=2", SWEEP),
    ],
)
def test_what_was_stopped_at_random_file_operations_completes(tmp_path, stops, command):
    """Fifty stops in all; `python tests/reliability/killed.py FOLDER KILL=1000 mixer=attn ...` makes more."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    args = [sys.executable, str(KILLED), str(tmp_path), stops, *command]
    done = subprocess.run(args, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["operations"] > 30 and outcome["records"] == (2 if command is SWEEP else 1), outcome
    assert outcome["wrong"] == []
