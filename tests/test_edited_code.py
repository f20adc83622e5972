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


def test_the_code_of_what_a_yaml_makes_for_the_mixer_counts(mine, own, tmp_path):
    _, given = mine
    outer, inner = f"outer_{tmp_path.name}", f"inner_{tmp_path.name}"
    (tmp_path / f"{inner}.py").write_text("def scaled(by):\n    return by\n")
    (tmp_path / f"{outer}.py").write_text(
        "from mixerlab.mixers.attn import Attention\nclass Outer(Attention):\n"
        "    def __init__(self, d_model, scales):\n        super().__init__(d_model, num_heads=2)\n"
        "        self.scale = scales[0]\n    def forward(self, x):\n        return self.scale * super().forward(x)\n"
    )
    yaml = f"name: outer\n_target_: {outer}.Outer\nscales: [{{_target_: {inner}.scaled, by: 2.0}}]\n"
    given = (*own("mixer/outer", yaml), "mixer=outer", *given[3:-2], f"results_dir={tmp_path}")
    assert run_py(*given).code == 0
    assert run_py(*given, "dry_run=true").out.endswith(": finished\n")
    (tmp_path / f"{inner}.py").write_text("def scaled(by):\n    return 2 * by\n")
    importlib.reload(sys.modules[inner])
    assert run_py(*given, "dry_run=true").out.endswith(": finished, code changed\n")
    lines = run_py("-m", *given, "seed=0,3", "dry_run=true").out.splitlines()
    assert lines[0].endswith("seed=0 finished, code changed") and lines[1].endswith("seed=3 to run")
