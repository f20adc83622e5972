"""A session of Python in which a mixer's file is edited: what a record says of its code is what ran."""

import importlib
import sys

import pytest
from command_line import TINY

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


def test_an_edit_is_told_and_not_taken_for_what_ran(mine, caplog):
    write, given = mine
    mixerlab.build_model(*given)
    write(2)
    hash_of_old, old = trained(given)
    assert "has changed since it was imported, and this process runs it as it was: restart Python" in caplog.text
    caplog.clear()
    assert trained(given) == (hash_of_old, old)
    assert "has changed" not in caplog.text, "once"
    importlib.reload(sys.modules[write(2)])
    hash_of_new, new = trained(given)
    assert hash_of_new != hash_of_old and new != old
    assert "has changed" not in caplog.text


LEAKS = """
import torch
from mixerlab.mixers.attn import Attention
class Mine(Attention):
    def forward(self, x):
        return super().forward(x) + x.mean(1, keepdim=True)
    def state_size(self, seq_len):
        return 7
"""


def test_after_a_reload_all_is_looked_at_again(mine, tmp_path):
    write, given = mine
    assert mixerlab.run(*given).rows[0]["state_size"] != 14
    (tmp_path / f"{write(1)}.py").write_text(LEAKS)
    importlib.reload(sys.modules[f"edited_{tmp_path.name}"])
    with pytest.raises(RuntimeError, match="sees the future"):
        mixerlab.run(*given)
    record = mixerlab.run(*given, "model.may_see_future=true")
    assert record.provenance["sees_future"] is True and record.rows[0]["state_size"] == 14


def test_a_comment_is_no_change(mine, caplog, tmp_path):
    _, given = mine
    before = trained(given)
    (file,) = tmp_path.glob("edited_*.py")
    file.write_text(f"# new\n{file.read_text()}")
    assert trained(given) == before and "has changed" not in caplog.text
