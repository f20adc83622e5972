"""What is committed in results/ is what `results/remake.py` makes of the committed records."""

import shutil
from importlib import import_module

import pandas as pd
import pytest
from command_line import ROOT

import mixerlab
from mixerlab.config.values import checked
from mixerlab.records.identity import run_id

RESULTS = ROOT / "results"
MADE = {
    "parity": ["rows.csv", "rows.md"],
    "screen": ["recipes.md", "effects.csv"],
    "arms": ["arms.md"],
    "board": ["accuracy.md", "gains.md", "rates.md", "official/solved.md"],
    "ingredients": ["effects.md"],
    "analysis": ["claims.md", "stable_ranks.md"],
    "text": [
        "rates.md",
        "bits_per_byte.md",
        "controls.md",
        "schedules.md",
        "conversion.md",
        "claims.md",
        "stable_ranks.md",
    ],
    "frontier": ["clean/settings.md", "clean/token_accuracy.md", "official/settings.md"],
    "adamw": ["beside_muon.md", "claim.md", "official/settings.md", "official/solved.md"],
    "challenge": ["recipes.md", "official/challenge.md", "official/solved.md"],
    "table": [
        "rows.csv",
        "official/accuracy.md",
        "official/settings.md",
        "official/solved.md",
        "clean/accuracy.md",
        "beside_published.md",
    ],
}
FAST = ("parity", "screen", "arms")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of results/, on which the makers work."""
    monkeypatch.syspath_prepend(RESULTS)
    shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("runs", "report"))
    monkeypatch.setattr(import_module("makers.common"), "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in MADE])
def test_committed_tables_come_from_the_records(copied, tmp_path, name):
    for file in MADE[name]:
        (copied / name / file).unlink()
    import_module(f"makers.{name}").make(tmp_path / "scratch")
    for file in MADE[name]:
        assert (copied / name / file).read_text() == (RESULTS / name / file).read_text(), file


@pytest.fixture(scope="module")
def rows():
    return pd.read_csv(RESULTS / "table" / "rows.csv", low_memory=False)


def test_a_replica_counts_once(rows):
    assert not rows.duplicated(["mixer", "task", "setting", "lr", "seed"]).any()


@pytest.mark.parametrize("mixer", ["attn", "parallax", "gdn", "mamba", "mesa"])
@pytest.mark.parametrize("cell", [("mem", "vocab_size-1024"), ("sc_challenge", "128-512")])
def test_the_records_are_of_the_default_recipe(rows, mixer, cell):
    """So a sweep over restored records trains only what is not there. Parallax's default was another then."""
    arm = ("mixer.zero_init_rho=true", "mixer.rope_on_rho=false") if mixer == "parallax" else ()
    runs = rows[(rows["mixer"] == mixer) & (rows["task"] == cell[0]) & (rows["setting"] == cell[1])]
    assert runs["run_id"].nunique() > 0
    for identity, run in runs.groupby("run_id"):
        rates, seeds = (list(dict.fromkeys(run[column].tolist())) for column in ("lr", "seed"))
        place = f"mixer={mixer}", *arm, f"task={cell[0]}", f"task.setting={cell[1]}"
        config = mixerlab.compose(*place, f"optimizer.lr={rates}", f"seed={seeds}")
        assert run_id(checked(config)[1]) == identity
