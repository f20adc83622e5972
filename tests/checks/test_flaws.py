"""Each mixer that breaks the contract in one way is refused for it, by `mixerlab check` and by a run; no other is."""

from contextlib import nullcontext

import pytest
import torch
from flawed_mixers import FLAWS, Flawed, look_as_a_run

from mixerlab.checks.contract import WIDTH, check_mixer


def refused(message):
    return nullcontext() if message is None else pytest.raises((ValueError, RuntimeError), match=message)


@pytest.mark.parametrize("name", FLAWS)
def test_the_check(name):
    torch.manual_seed(0)
    with refused(FLAWS[name].check):
        check_mixer(lambda: Flawed(name, WIDTH))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", [name for name, flaw in FLAWS.items() if flaw.run is not ...])
def test_a_run(name, bf16):
    if FLAWS[name].run is None:
        check = look_as_a_run(lambda: Flawed(name), bf16=bf16)
        assert check.sees_future is (None if name == "NaN" else False)
        assert len(check.notes) == (name in ("NaN", "rows in training"))
        return
    with refused(FLAWS[name].run):
        look_as_a_run(lambda: Flawed(name), bf16=bf16)
    if "sees the future" in FLAWS[name].run:
        check = look_as_a_run(lambda: Flawed(name), bf16=bf16, may_see_future=True)
        assert check.sees_future is True and "sees the future" in check.notes[0]
