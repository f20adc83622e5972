"""Each mixer that breaks the contract in one way is refused for it, by `mixerlab check` and by a run; no other is."""

from contextlib import nullcontext

import pytest
from flawed_mixers import FLAWS, FUTURE, Flawed, as_a_run

from mixerlab.checks.contract import WIDTH, check_mixer


def refused(message):
    return pytest.raises((ValueError, RuntimeError), match=message) if message else nullcontext()


@pytest.mark.parametrize("name", FLAWS)
def test_the_check(name):
    with refused(FLAWS[name].message):
        check_mixer(lambda: Flawed(name, WIDTH))


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FLAWS)
def test_a_run(name, bf16):
    message = None if FLAWS[name].check_only else FLAWS[name].message
    with refused(message):
        check = as_a_run(lambda: Flawed(name), bf16=bf16)
    if message is None:
        assert check.sees_future is (None if name == "NaN" else False)
        assert len(check.notes) == (name in ("NaN", "rows in training"))
    elif message.startswith(FUTURE):
        check = as_a_run(lambda: Flawed(name), bf16=bf16, may_see_future=True)
        assert check.sees_future is True and FUTURE in check.notes[0]
