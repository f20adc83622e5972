"""Where a record says that it comes from: versions, and the commits of this checkout and of the user's project."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from command_line import ROOT, TINY

import mixerlab
from mixerlab.config import project
from mixerlab.records import provenance


@pytest.fixture
def repository(tmp_path):
    def git(*args):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        done = subprocess.run(["git", "-C", tmp_path, *who, *args], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "mine.py").write_text("x = 1\n")
    git("add", "mine.py")
    git("commit", "--quiet", "-m", "first")
    return tmp_path, git("rev-parse", "HEAD")


NOTHING = {"git_commit": None, "git_dirty": None}


def state(folder=None):
    return provenance.git_state.__wrapped__(folder)  # not what was found before


def test_the_users_project_is_named_beside_this_checkout(repository):
    """Results in it are no change; an edit and a new module are."""
    folder, commit = repository
    (folder / "results").mkdir()
    (folder / "results/record.json").write_text("{}")
    assert state(folder)["project"] == {"git_commit": commit, "git_dirty": False} and "project" not in state()
    (folder / "mine.py").write_text("x = 2\n")
    assert state(folder)["project"]["git_dirty"] is True
    (folder / "mine.py").write_text("x = 1\n")
    (folder / "new.py").write_text("x = 1\n")
    assert state(folder)["project"]["git_dirty"] is True


def test_a_copy_that_is_installed_in_a_users_repository_has_no_commit(repository, monkeypatch):
    """As in its `.venv`."""
    installed = repository[0] / ".venv" / "provenance.py"
    installed.parent.mkdir()
    installed.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert state() == NOTHING


def test_a_project_of_which_the_repository_around_it_has_nothing_has_no_commit(repository):
    """Such as one below a home folder whose settings are in git."""
    mine = repository[0] / "mine"
    mine.mkdir()
    (mine / "mixer.py").write_text("x = 1\n")
    assert state(mine)["project"] == NOTHING


def test_a_git_that_takes_too_long_or_is_not_there_leaves_the_commit_open(repository, monkeypatch):
    for seconds, path in ((0, None), (10, "")):
        monkeypatch.setattr(provenance, "_GIT_TIMEOUT", seconds)
        if path is not None:
            monkeypatch.setenv("PATH", path)
        assert state(repository[0]) == NOTHING | {"project": NOTHING}


def test_asking_for_the_state_takes_no_lock(repository):
    """A commit that the user makes at that moment would fail."""
    folder, _ = repository
    index = folder / ".git" / "index"
    os.utime(folder / "mine.py", (0, 0))  # which git would write down, if it might
    before = index.stat().st_mtime_ns
    assert state(folder)["project"]["git_dirty"] is False and index.stat().st_mtime_ns == before


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows what it ignores")
def test_what_runs_and_sweeps_leave_is_ignored():
    left = "runs/0123/record.json", "sweeps/mine.txt", "report/rows.csv", ".submitit/1/log"
    paths = [f"results/{name}" for name in left]
    done = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == paths


def test_a_record_names_the_project_of_its_own_call(repository, monkeypatch):
    """Not that of an earlier one; and a config is of the project in which it was composed."""
    folder, commit = repository
    monkeypatch.setattr(project, "_used", [])
    monkeypatch.setattr("sys.path", sys.path[:])
    (folder / "conf").mkdir()
    tiny = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=1", f"results_dir={folder / 'results'}")
    config = mixerlab.compose(*tiny, config_dir=folder / "conf")
    assert mixerlab.run(config=config).provenance["project"]["git_commit"] == commit
    assert "project" not in mixerlab.run(*tiny, "seed=1").provenance


def test_provenance_says_what_ran():
    origin = provenance.provenance(
        started_at=datetime(2026, 1, 2, tzinfo=UTC),
        device="cpu",
        backends={"parallax": "reference"},
        code={"mixer": "0123", "task": "4567"},
        git={"git_commit": "89ab", "git_dirty": False},
    )
    assert origin["started_at"] == "2026-01-02T00:00:00+00:00" and origin["wall_time_s"] > 0
    assert {"python", "torch", "numpy"} <= origin["versions"].keys()
    assert origin["git_commit"] == "89ab" and origin["code_version"] == {"mixer": "0123", "task": "4567"}
    assert json.loads(json.dumps(origin)) == origin


def test_reading_and_reporting_need_no_torch():
    script = "import sys, mixerlab.records.provenance, mixerlab.sweeps.report.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
