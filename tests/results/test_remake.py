"""What is committed in results/ is what `results/remake.py` makes of the committed records."""

import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest
from command_line import ROOT

import mixerlab
from mixerlab.config.values import checked
from mixerlab.records.identity import run_id
from mixerlab.sweeps.tables.collect import rows_of

RESULTS = ROOT / "results"
MAKERS = sorted(path.stem for path in RESULTS.glob("makers/*.py") if path.stem != "common")
ROWS = {"parity": "rows.csv", "screen": "effects.csv", "table": "rows.csv"}  # which are made too
FAST = ("parity", "screen", "arms")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of results/, on which the makers work."""
    monkeypatch.syspath_prepend(RESULTS)
    shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("runs", "report"))
    monkeypatch.setattr(import_module("makers.common"), "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in MAKERS]
)
def test_committed_tables_come_from_the_records(copied, tmp_path, name):
    files = [path.relative_to(RESULTS) for path in (RESULTS / name).rglob("*.md")]
    files += [Path(name, ROWS[name])] if name in ROWS else []
    for file in files:
        if file.name == "README.md":  # the author's, but for the tables
            page = copied / file
            page.write_text(re.sub(r"(<!-- .* -->\n)(\|.*\n)+", r"\1", page.read_text()))
        else:
            (copied / file).unlink()
    import_module(f"makers.{name}").make(tmp_path / "scratch")
    for file in files:
        assert (copied / file).read_text() == (RESULTS / file).read_text(), file


def test_a_replica_counts_once():
    rows = rows_of(RESULTS / "table" / "rows.csv")
    assert not rows.duplicated(["mixer", "task", "setting", "lr", "seed"]).any()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mixer", ["attn", "parallax", "gdn", "mamba", "mesa"])
@pytest.mark.parametrize(
    ("source", "task", "setting"),
    [
        ("table/rows.csv", "mem", "vocab_size-1024"),
        pytest.param("challenge/records.tar.xz", "sc_challenge", "128-512", marks=pytest.mark.slow),
    ],
)
def test_the_records_are_of_the_default_recipe(mixer, source, task, setting):
    """So a sweep over restored records trains only what is not there. The challenge has Parallax's former default."""
    earlier = mixer == "parallax" and task == "sc_challenge"
    arm = ("mixer.zero_init_rho=true", "mixer.rope_on_rho=false") if earlier else ()
    rows = rows_of(RESULTS / source)
    runs = rows[(rows["mixer"] == mixer) & (rows["task"] == task) & (rows["setting"] == setting)]
    assert runs["run_id"].nunique() > 0
    for identity, run in runs.groupby("run_id"):
        rates, seeds = (list(dict.fromkeys(run[column].tolist())) for column in ("lr", "seed"))
        place = f"mixer={mixer}", *arm, f"task={task}", f"task.setting={setting}"
        config = mixerlab.compose(*place, f"optimizer.lr={rates}", f"seed={seeds}")
        assert run_id(checked(config)[1]) == identity
