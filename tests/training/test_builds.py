"""Cells of a sweep that differ in length, replicas, examples or vocabulary reuse the kernels that others compiled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Kernels that need another build for a length that is not a multiple of 16, for a length above 128, and for a
# vocabulary that is not a multiple of 16. (The vocabularies of all cells round up to the same power of two.)
# Only our own mixers are listed, not all of `conf/mixer`: a user's mixer may build what it likes.
OF_ODD_LENGTHS = {
    "attn": {"_short_attention_forward_kernel", "_short_attention_backward_kernel"},
    "parallax": {"short_forward_kernel", "short_backward_kernel"},
    "gdn": {"_split_heads_kernel"},
    "mamba": set(),
    "mesa": {"_split_heads_kernel"},
}
PROJECTING = {"look_up_kernel", "projection_kernel"}  # of the operator that projects, which does not norm
OF_LONG = {"parallax": PROJECTING | {"forward_kernel", "preprocess_kernel", "dq_kernel", "dkv_kernel"}}
SUMS = {"_sum_parts_kernel"}  # sums of more parts, of which longer sequences have more, take other tiles
OF_LONGER = {"attn": SUMS, "parallax": SUMS, "gdn": set(), "mamba": SUMS, "mesa": SUMS}
OF_ODD_VOCABULARIES = {
    "attn": set(),
    "parallax": set(),
    "gdn": set(),
    "mamba": {"scan_forward_kernel", "scan_backward_kernel"},
    "mesa": set(),
}
# With every mixer: by the logits, and by the number of parameters.
LOGITS = {"_cross_entropy_forward_kernel", "_cross_entropy_backward_kernel"}
PARAMETERS = {"_join_columns_kernel", "_squares_kernel", "_moments_kernel", "_parameters_kernel"}


@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
@pytest.mark.slow
@pytest.mark.parametrize(
    "mixer, options",
    [*((mixer, {}) for mixer in OF_ODD_LENGTHS), ("attn", {"qk_norm": False}), ("parallax", {"qkr_norm": False})],
)
def test_what_each_cell_builds_anew(mixer, options):
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "kernels")))
    script = Path(__file__).with_name("count_builds.py")
    command = [sys.executable, script, mixer, json.dumps(options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    builds = {cell: set(names) for cell, names in json.loads(done.stdout).items()}
    assert len(builds.pop("first")) > 20
    assert builds == {
        "shorter": set(),
        "odd": OF_ODD_LENGTHS[mixer],
        "long": OF_LONG.get(mixer, set()) - (set() if "qkr_norm" in options else PROJECTING) | SUMS,
        "longer": OF_LONGER[mixer],
        "one replica": set(),
        "fewer examples": set(),
        "fewer scored": set(),
        "other vocabulary": set(),
        "odd vocabulary": OF_ODD_VOCABULARIES[mixer] | LOGITS | PARAMETERS,
        "other odd vocabulary": set(),
    }
