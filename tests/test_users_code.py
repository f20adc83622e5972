"""The user's code cannot end the process or move its results: that is an error of it, or nothing."""

import pytest
from command_line import TINY, run_py

from mixerlab.config.building import maker
from mixerlab.training.schedules import WSD

HEAD = """
import os, sys
from mixerlab.mixers.attn import Attention
from mixerlab.tasks.in_context_recall import InContextRecall
from mixerlab.training.schedules import WSD
"""
# Where `sys.exit` stands, by what is the user's own.
PLACES = {
    "module": ("mixer", "sys.exit(0)"),
    "constructor": ("mixer", "class Own(Attention):\n    def __init__(self, d_model, **_): sys.exit(0)"),
    "state_size": ("mixer", "class Own(Attention):\n    def state_size(self, seq_len): sys.exit(0)"),
    "chance": ("task", "class Own(InContextRecall):\n    chance = property(lambda self: sys.exit(0))"),
    "length": ("task", "class Own(InContextRecall):\n    input_length = property(lambda self: sys.exit(0))"),
    "schedule": ("schedule", "class Own(WSD):\n    def learning_rate(self, progress): sys.exit(0)"),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_exit_of_the_users_code_is_an_error_with_its_words(tmp_path, monkeypatch, place):
    group, code = PLACES[place]
    (tmp_path / f"exits_in_{place}.py").write_text(HEAD + code)
    monkeypatch.syspath_prepend(tmp_path)
    own = f"{group}._target_=exits_in_{place}.Own"
    run = ("mixer=attn", "task=icr", *TINY, own, f"results_dir={tmp_path / 'results'}")
    sweep = [("-m", *run)] if place == "module" else []
    check = [("check", "attn", own)] if group == "mixer" else []
    for command in (run, *sweep, *check):
        outcome = run_py(*command)
        assert outcome.code == 1 and "SystemExit: 0" in outcome.err and outcome.err.count("\n") == 1, command
    assert not list(tmp_path.glob("results/runs/*"))


def test_a_module_that_changes_the_working_folder_moves_no_results(tmp_path, monkeypatch):
    (tmp_path / "changes_folder.py").write_text(f"{HEAD}os.chdir('/')\nclass Own(Attention): pass")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = ("mixer=attn", "task=icr", *TINY, "trainer.epochs=1")
    outcome = run_py(*run, "mixer._target_=changes_folder.Own", "results_dir=results")
    assert outcome.code == 0 and len(list(tmp_path.glob("results/runs/*/record.json"))) == 1


class Refuses(WSD):
    def __init__(self, warmup):
        if not warmup:
            raise ValueError("warmup=0 is too short")
        super().__init__(warmup=warmup)


class Takes(WSD):
    """Its values are refused by a class of ours."""


@pytest.mark.parametrize(
    ("kind", "warmup", "said"),
    [
        (Refuses, 0, f"schedule=own: warmup=0 is too short, in Refuses.__init__ ({__file__}:"),
        (Refuses, 3, "schedule.warmup=3 and "),
        (Takes, 3, "schedule.warmup=3 and "),
        (WSD, 3, "schedule.warmup=3 and "),
    ],
)
def test_a_refused_value_is_told_in_the_words_of_who_refuses_it(kind, warmup, said):
    """With the user's line if it is on the way."""
    with pytest.raises(ValueError) as caught:
        maker({"name": "own", "_target_": f"{kind.__module__}.{kind.__name__}", "warmup": warmup}, "schedule")()
    message = str(caught.value)
    assert message.startswith(said) and ("Refuses.__init__" in message) == (kind is Refuses)
