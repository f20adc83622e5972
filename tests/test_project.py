"""Several projects of the user's own in one process: a config stays with the one that it was composed in."""

import subprocess
import sys

import pytest
from command_line import TINY, ran, refusal

import mixerlab
from mixerlab.config import project

MIXER = """
from mixerlab.mixers.attn import Attention

class Mine(Attention):
    pass
"""


@pytest.fixture
def make_project(tmp_path, monkeypatch):
    """Makes a repository with the mixer `name`, and gives its folder of yamls and its commit."""
    monkeypatch.setattr(project, "_projects", [])
    monkeypatch.setattr("sys.path", sys.path[:])
    for module in [name for name in sys.modules if name.partition(".")[0] == "mixers"]:  # of other tests
        monkeypatch.delitem(sys.modules, module)

    def make(name):
        folder = tmp_path / name
        (folder / "conf" / "mixer").mkdir(parents=True)
        (folder / "mixers").mkdir()
        (folder / "mixers" / f"{name}.py").write_text(MIXER)
        yaml = f"name: {name}\n_target_: mixers.{name}.Mine\nnum_heads: 2\n"
        (folder / "conf" / "mixer" / f"{name}.yaml").write_text(yaml)
        own = ("-c", "user.name=me", "-c", "user.email=me@here")
        for command in (["init", "-q"], ["add", "."], [*own, "commit", "-q", "-m", name]):
            subprocess.run(["git", *command], cwd=folder, check=True)
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
        return folder / "conf", commit.stdout.strip()

    yield make
    for module in [name for name in sys.modules if name.partition(".")[0] == "mixers"]:
        del sys.modules[module]


def test_a_config_stays_with_the_project_that_it_was_composed_in(make_project, tmp_path):
    """Its classes are found there, and its record names it, whatever was composed since."""
    given = ("task=icr", *TINY, "trainer.epochs=1", f"results_dir={tmp_path / 'results'}")
    (early, early_commit), (late, late_commit) = make_project("early"), make_project("late")
    first = mixerlab.compose("mixer=early", *given, config_dir=early)
    second = mixerlab.compose("mixer=late", *given, config_dir=late)
    ours = mixerlab.compose("mixer=attn", *given)
    for config, commit in ((first, early_commit), (second, late_commit), (ours, None), (first, early_commit)):
        config.force = True
        record = mixerlab.run(config=config)
        assert record.provenance.get("project", {}).get("git_commit") == commit


def test_a_folder_is_found_at_home(make_project, tmp_path, monkeypatch):
    make_project("mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    for command in (("check", "mine"), ("mixer=mine", *TINY, "results_dir=~/out", "dry_run=true")):
        outcome = ran(*command, "--config-dir=~/mine/conf")
    assert f"# {tmp_path}/out/runs/" in outcome.out


def test_a_second_folder_of_yamls_adds_to_the_first(make_project):
    (first, _), (second, _) = make_project("early"), make_project("late")
    options = ("--config-dir", str(first), f"--config-dir={second}")
    dry = ran(*options, "-m", "mixer=early,late", "task=icr", *TINY, "dry_run=true").out
    assert "early icr" in dry and "late icr" in dry
    ran(*options, "check", "late")
    assert mixerlab.compose("mixer=late", config_dir=[first, second]).mixer.name == "late"
    (first / "mixer" / "late.yaml").write_text((second / "mixer" / "late.yaml").read_text())
    message = refusal(*options, "mixer=late", "task=icr", *TINY, "dry_run=true")
    assert f"mixer/late.yaml: {first}" in message.replace(str(second), str(first))


def test_a_package_that_hides_the_projects_own_is_named(make_project, tmp_path, monkeypatch):
    """A folder without `__init__.py` loses to one with it, wherever they are on the path."""
    (tmp_path / "other" / "mixers").mkdir(parents=True)
    (tmp_path / "other" / "mixers" / "__init__.py").touch()
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path / "other")])
    with pytest.raises(ValueError, match=f"looked in {tmp_path / 'other' / 'mixers'}"):
        mixerlab.build_model("mixer=early", "task=icr", *TINY, config_dir=make_project("early")[0])


def test_a_module_that_hides_a_folder_of_the_project_is_named(own):
    """Of the standard library, for one, if something has imported it."""
    _, conf = own("schedule/mine", "name: mine\n_target_: math.own.Mine\n")
    with pytest.raises(ValueError, match=r"'math' is not a package; looked in <module 'math'"):
        mixerlab.build_model("schedule=mine", "task=icr", *TINY, config_dir=conf)
