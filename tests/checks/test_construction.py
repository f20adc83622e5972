"""A constructor that changes what the whole process shares, as public code has it, is refused by a check and a run."""

import random

import numpy as np
import pytest
import torch
from command_line import TINY

import mixerlab
from mixerlab.checks.construction import check_construction
from mixerlab.checks.contract import check_everything
from mixerlab.mixers.attn import Attention
from mixerlab.records.errors import RefusedMixer

_state = torch.get_rng_state()


def forks():
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(42)
        torch.rand(2)


def sets_back():
    state = random.getstate()
    random.seed(1)
    random.setstate(state)
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)


def draws():
    np.random.default_rng(0).random()
    torch.rand(3, generator=torch.Generator().manual_seed(0))
    torch.rand(2), np.random.rand(), random.random()  # noqa: NPY002


def seeds_everything():
    import lightning  # here: it imports Triton, which tests of kernels do after they have set how it runs

    lightning.seed_everything(7, verbose=False)


ALLOWED = (forks, sets_back, draws)
REFUSED = {
    "torch": lambda: torch.manual_seed(42),
    "of torch,": lambda: torch.set_rng_state(_state),
    "numpy": lambda: np.random.seed(0),  # noqa: NPY002
    "random": lambda: random.seed(0),
    "torch and numpy and random": seeds_everything,
    r"torch.set_default_dtype\(torch.float64\)": lambda: torch.set_default_dtype(torch.float64),
    r"torch.set_grad_enabled\(False\)": lambda: torch.set_grad_enabled(False),
}


class Mine(Attention):
    act = None

    def __init__(self, **arguments):
        type(self).act()
        super().__init__(**arguments)


@pytest.mark.parametrize("act", ALLOWED)
def test_what_leaves_the_process_as_it_was_may(act):
    check_construction(act)


@pytest.mark.parametrize("named", REFUSED)
def test_what_does_not_is_refused_and_undone(named, monkeypatch, tmp_path):
    monkeypatch.setattr(Mine, "act", staticmethod(REFUSED[named]))
    before = torch.get_rng_state()
    with pytest.raises(RefusedMixer, match=named):
        check_everything(lambda: Mine(d_model=32, num_heads=2))
    torch.set_rng_state(before)
    given = ("mixer=attn", f"mixer._target_={__name__}.Mine", "task=icr", *TINY, f"results_dir={tmp_path}")
    with pytest.raises(ValueError, match=f"^mixer=attn: .*{named}"):
        mixerlab.run(*given, "seed=[0,1]")
    assert torch.equal(torch.get_rng_state(), before) and not list(tmp_path.iterdir())
    assert torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled()
