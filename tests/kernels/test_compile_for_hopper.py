"""Every kernel compiles for the GPU that it was written for, on a machine without one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
@pytest.mark.slow  # two minutes, unless they are in Triton's cache
def test_every_kernel_compiles():
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path])
    script = Path(__file__).with_name("compile_for_hopper.py")
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    defining = re.compile(r"^@triton\.jit\b.*\n(?:@.*\n)*def \w*kernel\(", re.MULTILINE)
    with_kernels = {
        ".".join(("mixerlab", *path.relative_to(ROOT).with_suffix("").parts))
        for path in (ROOT / "kernels").rglob("*.py")
        if defining.search(path.read_text())
    }
    assert set(done.stdout.split()) == with_kernels
