"""The identity of a run, and that its record is whole or absent."""

import json
import shutil
import sys
from pathlib import Path

import fakes
import pytest
from omegaconf import OmegaConf

import mixerlab
from mixerlab.records import code_version as code_versions
from mixerlab.records.code_version import COMPUTING, code_version
from mixerlab.records.files import has_results, read_config, read_record, run_folder, write_config, write_record
from mixerlab.records.identity import run_id
from mixerlab.records.provenance import shell_command

ROOT = Path(__file__).parents[2]


def with_key(key, value):
    changed = OmegaConf.create(fakes.config())
    OmegaConf.update(changed, key, value)
    return OmegaConf.to_container(changed)


def test_identity_is_stable():
    # Written down: an identity that changes from one version to the next repeats every run of a sweep.
    identity = run_id(fakes.config(lr=[1e-3], seed=0))
    assert identity == "90b6861a1046"
    assert identity == run_id(dict(reversed(fakes.config(lr=[1e-3], seed=0).items())))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("results_dir", "elsewhere"),
        ("force", True),
        ("task.setting", "seq_len-128"),
        ("optimizer.lr", [0.005, 0.0005, 0.001]),
        ("seed", [0]),
        ("model.d_model", 128.0),
        ("mixer.a_later_key", False),
        ("model.a_later_key", None),
    ],
)
def test_identity_ignores(key, value):
    assert repr(with_key(key, value)) != repr(fakes.config())
    assert run_id(with_key(key, value)) == run_id(fakes.config())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mixer.num_heads", 4),
        ("mixer.a_later_key", True),
        ("mixer.a_later_key", 0),
        ("task.data_dir", "data"),
        ("task.levels_of_noise", 2),  # of a user's task, whose name begins as that of a label does
        ("optimizer.lr", [5e-4, 1e-3]),
        ("seed", [0, 1]),
        ("schedule.decay", None),
    ],
)
def test_identity_depends_on(key, value):
    assert run_id(with_key(key, value)) != run_id(fakes.config())


@pytest.fixture
def folder(tmp_path):
    """That of the run which `fakes.config()` describes."""
    return run_folder(tmp_path, run_id(fakes.config()))


def test_record_and_config_come_back(folder):
    config = fakes.config()
    record = fakes.record(config, [0.5, "diverged", 1])
    assert read_record(folder) is None and not has_results(folder)
    write_record(folder, record)
    write_config(folder, config)
    assert read_record(folder) == record and has_results(folder) and read_config(folder) == config
    assert json.loads((folder / "record.json").read_text())["score"] == {
        "name": "accuracy",
        "higher_is_better": True,
        "axis": "epoch",
    }
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "record.json"]


CODE = """class Twice:
    factor = 2

    def __call__(self, x):
        return self.factor * x
"""


def read_anew(monkeypatch, module):
    """The version of its code in a process that has not read it yet."""
    monkeypatch.setattr(code_versions, "_read", {})
    code_versions._followed.cache_clear()
    return code_version(module)


def test_the_code_of_a_module_does_not_count_comments_and_docstrings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def version(text):
        (tmp_path / "twice.py").write_text(text)
        return read_anew(monkeypatch, "twice")

    commented = CODE.replace("factor = 2", '"""Doubles."""\n\n    factor = 2  # not 3')
    assert version(CODE) == version(commented) != version(CODE.replace("factor = 2", "factor = 3"))


@pytest.mark.parametrize(
    ("target", "file", "noticed"),
    [
        ("mixers.parallax", "kernels/parallax/reference.py", True),  # which a function of a package imports
        ("mixers.parallax", "mixers/mamba.py", False),
        ("mixers.attn", "kernels/fused/swiglu/__init__.py", False),  # the neighbour of what it imports
        ("training.fit", "records/schema.py", False),
    ],
)
def test_the_code_of_a_part_is_all_that_it_imports(tmp_path, monkeypatch, target, file, noticed):
    module = f"mixerlab.{target}"
    as_it_is = code_version(module)
    for package in (*COMPUTING, "records"):
        shutil.copytree(ROOT / package, tmp_path / package)
    monkeypatch.setattr(mixerlab, "__path__", [str(tmp_path)])
    monkeypatch.setattr(code_versions, "_located", lambda name: tmp_path / f"{target.replace('.', '/')}.py")
    assert read_anew(monkeypatch, module) == as_it_is
    (tmp_path / file).write_text((tmp_path / file).read_text() + "\nchanged = True\n")
    assert (read_anew(monkeypatch, module) != as_it_is) == noticed


@pytest.mark.parametrize(
    ("file", "noticed"),
    [
        ("mine/helper.py", True),
        ("shared.py", True),
        ("editable/part.py", True),
        ("site-packages/installed.py", False),
        ("other.py", False),
    ],
)
def test_the_code_of_a_users_own_mixer_has_what_it_imports_of_the_users(tmp_path, monkeypatch, file, noticed):
    """Beside what it imports of ours; what is installed is left out."""
    for folder in ("", "editable", "site-packages"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    for name in ("mine", "mine.mixer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    files = {
        "mine/mixer.py": "import torch\nfrom mixerlab.mixers.base import SequenceMixer\nfrom . import helper\n",
        "mine/helper.py": "from shared import constant\nimport part, installed, package, __main__\n",
        "editable/part.py": "constant = 1\n",
        "editable/package/__init__.py": "with suppress(ImportError):\n    from . import compiled\n",
        "editable/package/compiled.so": "",
        "site-packages/installed.py": "constant = 1\n",
        "mine/__init__.py": "",
        "shared.py": "constant = 1\nwith suppress(ImportError):\n    from ..shared import constant\n",
        "other.py": "constant = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = read_anew(monkeypatch, "mine.mixer")
    (tmp_path / file).write_text((tmp_path / file).read_text() + "constant = 2\n")
    assert (read_anew(monkeypatch, "mine.mixer") != before) == noticed


def test_the_command_of_the_module_is_one_that_finds_a_users_own_classes():
    """As a script `__main__.py` would have our folder `mixers` in front of theirs."""
    assert shell_command(f"{mixerlab.__path__[0]}/__main__.py", "mixer=mine") == "python -m mixerlab mixer=mine"
    assert shell_command("run.py", "mixer=mine") == "python run.py mixer=mine"
