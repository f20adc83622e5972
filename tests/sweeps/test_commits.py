"""Which commits a record names: that of this checkout, and that of the user's own project."""

import subprocess

import pytest

from mixerlab import project
from mixerlab.sweeps import provenance


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


def test_the_project_is_the_folder_beside_whose_yamls_classes_were_found(tmp_path, monkeypatch):
    monkeypatch.setattr(project, "_used", [])
    assert project.project_in_use() is None
    (tmp_path / "conf").mkdir()
    monkeypatch.setattr("sys.path", [])
    project.use_folder(tmp_path / "conf")
    assert project.project_in_use() == tmp_path
