"""A run and a sweep stopped in the midst: the same command completes, with the same records to the last byte."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TINY

KILLED = Path(__file__).with_name("killed.py")
FORCED = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=2", "force=true")
SWEEP = ("-m", "mixer=attn", "task=icr,cmp", *TINY, "trainer.epochs=2")

pytestmark = pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the names of open files in /proc")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "ways"), [(FORCED, "KILL=4,TERM=1,FULL=1"), (SWEEP, "KILL=4,INT=1,FULL=1")])
def test_what_was_stopped_at_a_file_operation_completes(tmp_path, command, ways):
    """Each on another kind of file; `python tests/reliability/killed.py FOLDER KILL=1000 mixer=attn ...` makes more."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # backward forks on a CPU alone
    args = [sys.executable, str(KILLED), str(tmp_path), ways, *command]
    done = subprocess.run(args, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["operations"] > 30 and outcome["records"] == (2 if command is SWEEP else 1), outcome
    assert outcome["wrong"] == []
