"""`results/remake.py` writes what is committed, out of the committed records."""

import os
import shutil
import subprocess
import sys

import pytest
from command_line import ROOT

from mixerlab.results.reasons import with_section

MADE = ("table", "challenge", "adamw")


@pytest.mark.slow
def test_nothing_that_is_committed_is_out_of_date(tmp_path):
    """In a copy of the repository, whose tables and figures are emptied first."""
    hidden = shutil.ignore_patterns(".*", "shared", "__pycache__")
    copy = shutil.copytree(ROOT, tmp_path / "copy", ignore=hidden)
    emptied = [path for path in (copy / "results").glob("*/official/*") if path.parts[-3] in MADE]
    emptied += [copy / "results" / "table" / name for name in ("rows.csv", "facts.md")]
    emptied += [*(copy / "results" / "table" / "clean").iterdir()]
    emptied += [copy / "results" / name for name in ("screen/distance.md", "adamw/beside_muon.md")]
    assert {path.name for path in emptied} >= {"settings.md", "solved.md", "challenge.md", "accuracy.png", "rows.csv"}
    for path in emptied:
        path.write_text("")
    page = copy / "results" / "README.md"
    page.write_text(with_section(page.read_text(), "none"))
    subprocess.run(
        [sys.executable, "results/remake.py"], cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)}, check=True
    )
    for path in emptied:
        if path.suffix == ".png":  # the same picture, and other bytes with another version of matplotlib
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            committed = ROOT / path.relative_to(copy)
            assert path.read_bytes() == committed.read_bytes(), committed
    assert page.read_bytes() == (ROOT / "results" / "README.md").read_bytes()
