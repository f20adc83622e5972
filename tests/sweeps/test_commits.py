"""Which commits a record names: that of this checkout, and that of the user's own project."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, TINY

import mixerlab
from mixerlab.config import project
from mixerlab.records import provenance


@pytest.fixture
def repository(tmp_path):
    def git(*arguments):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        done = subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "mine.py").write_text("x = 1\n")
    git("add", "mine.py")
    git("commit", "--quiet", "-m", "first")
    return tmp_path, git("rev-parse", "HEAD")


def state(folder=None):
    return provenance.git_state.__wrapped__(folder)  # not what was found before


def test_the_users_project_is_named_beside_this_checkout(repository):
    folder, commit = repository
    assert state(folder)["project"] == {"git_commit": commit, "git_dirty": False}
    (folder / "mine.py").write_text("x = 2\n")
    assert state(folder)["project"] == {"git_commit": commit, "git_dirty": True}
    assert "project" not in state()


def test_a_copy_that_is_installed_in_a_users_repository_has_no_commit(repository, monkeypatch):
    """As in its `.venv`."""
    folder, _ = repository
    installed = folder / ".venv" / "provenance.py"
    installed.parent.mkdir()
    installed.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert state() == {"git_commit": None, "git_dirty": None}


def test_a_project_outside_a_repository_has_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert state(tmp_path)["project"] == {"git_commit": None, "git_dirty": None}


def test_a_project_of_which_the_repository_around_it_has_nothing_has_no_commit(repository):
    """Such as one below a home folder whose settings are in git."""
    folder, commit = repository
    mine = folder / "mine"
    mine.mkdir()
    (mine / "mixer.py").write_text("x = 1\n")
    assert state(mine)["project"] == {"git_commit": None, "git_dirty": None}
    subprocess.run(["git", "-C", mine, "add", "mixer.py"], check=True)
    assert state(mine)["project"] == {"git_commit": commit, "git_dirty": True}


def test_results_in_a_project_are_no_change_of_it_but_a_new_module_is(repository):
    folder, commit = repository
    (folder / "results" / "runs").mkdir(parents=True)
    (folder / "results" / "runs" / "record.json").write_text("{}")
    assert state(folder)["project"] == {"git_commit": commit, "git_dirty": False}
    (folder / "mixers").mkdir()
    (folder / "mixers" / "new.py").write_text("x = 1\n")
    assert state(folder)["project"] == {"git_commit": commit, "git_dirty": True}


def test_a_git_that_takes_too_long_or_is_not_there_leaves_the_commit_open(repository, monkeypatch):
    folder, _ = repository
    for seconds, path in ((0, None), (10, "")):
        monkeypatch.setattr(provenance, "_GIT_TIMEOUT", seconds)
        if path is not None:
            monkeypatch.setenv("PATH", path)
        nothing = {"git_commit": None, "git_dirty": None}
        assert state(folder) == nothing | {"project": nothing}


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems refuse such names")
def test_a_name_in_another_encoding_is_a_change_too(repository):
    folder, _ = repository
    subprocess.run(["git", "-C", folder, "config", "core.quotePath", "false"], check=True)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.py")).write_text("")
    assert state(folder)["project"]["git_dirty"] is True


def test_asking_for_the_state_takes_no_lock(repository):
    """A commit that the user makes at that moment would fail."""
    folder, _ = repository
    index = folder / ".git" / "index"
    os.utime(folder / "mine.py", (0, 0))  # which git would write down, if it might
    before = index.stat().st_mtime_ns
    assert state(folder)["project"]["git_dirty"] is False and index.stat().st_mtime_ns == before


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows what it ignores")
def test_what_runs_and_sweeps_leave_is_ignored():
    left = "runs/0123/record.json", "sweeps/mine.txt", "report/rows.csv", ".submitit/1/log", "logs/1.txt", "errors.txt"
    paths = [f"results/{name}" for name in left]
    done = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == paths


def test_the_project_is_the_folder_beside_whose_yamls_classes_were_found(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "_used", [])
    assert project.project_in_use() is None
    (tmp_path / "conf").mkdir()
    monkeypatch.setattr("sys.path", [])
    project.use_folder(tmp_path / "conf")
    assert project.project_in_use() == tmp_path


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
