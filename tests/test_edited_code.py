"""A session of Python in which a mixer's file is edited: what a record says of its code is what ran."""

import importlib
import sys

import pytest
from command_line import TINY, run_py

import mixerlab

CODE = "from mixerlab.mixers.attn import Attention\nclass Mine(Attention):\n    def forward(self, x):\n"
CODE += "        return {factor} * super().forward(x)\n"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes the mixer's file; what must be given to train it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a second edit within a second has the same time stamp
    name = f"edited_{tmp_path.name}"

    def write(factor):
        (tmp_path / f"{name}.py").write_text(CODE.format(factor=factor))
        return name

    write(1)
    given = ("mixer=attn", "mixer.name=mine", f"mixer._target_={name}.Mine", "task=icr", *TINY)
    return write, (*given, "trainer.epochs=1", "optimizer.lr=0.01", "force=true", f"results_dir={tmp_path}")


def trained(given):
    record = mixerlab.run(*given)
    return record.provenance["code_version"]["mixer"], record.rows[0]["test_loss"]


def test_an_edit_is_not_taken_for_what_ran(mine):
    write, given = mine
    mixerlab.build_model(*given)
    write(2)
    hash_of_old, old = trained(given)
    assert trained(given) == (hash_of_old, old)
    importlib.reload(sys.modules[write(2)])
    hash_of_new, new = trained(given)
    assert hash_of_new != hash_of_old and new != old


@pytest.mark.slow
def test_a_dry_run_says_what_other_code_trained(mine):
    write, given = mine
    given = tuple(override for override in given if override != "force=true")
    mixerlab.run(*given)
    assert run_py(*given, "dry_run=true").out.endswith(": finished\n")
    importlib.reload(sys.modules[write(2)])
    assert run_py(*given, "dry_run=true").out.endswith(": finished, code changed\n")
    lines = run_py("-m", *given, "seed=0,3", "dry_run=true").out.splitlines()
    assert lines[0].endswith("seed=0 finished, code changed") and lines[1].endswith("seed=3 to run")
