"""Every bad input is refused before anything is trained or written, in a line that names the key."""

import contextlib
import io

import bad_inputs
import pytest
from hydra import compose, initialize_config_module
from hydra.errors import HydraException

from mixerlab.train import run, run_state

CASES = bad_inputs.cases()
LONGEST = 2000  # characters of a message; Hydra lists the choices of a group


@pytest.fixture(scope="module", autouse=True)
def hydra():
    with initialize_config_module("mixerlab.conf", version_base="1.3"):
        yield


def said(overrides, function=run_state):
    """The message with which a command with these overrides would end, or None if it is accepted."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            function(compose("config", [*bad_inputs.ATTN, *overrides]))
    except ValueError as error:
        return str(error)
    except HydraException as error:  # which Hydra prints without a traceback, with its cause
        return f"{error}\n{error.__cause__ or ''}"
    return None


def test_there_are_many_cases():
    assert len(CASES) >= 300 and len({tuple(overrides) for overrides, _ in CASES}) == len(CASES)


def refused(cases, tmp_path):
    """The cases that did not end as they must."""
    wrong = []
    for overrides, expected in cases:
        where = [] if any("results_dir" in override for override in overrides) else [f"results_dir={tmp_path}/new"]
        try:
            message = said([*where, *overrides])
        except Exception as error:  # what would be a traceback
            message = f"TRACEBACK {type(error).__name__}: {error}"
        if message is None or expected not in message or message.startswith("TRACEBACK") or len(message) > LONGEST:
            wrong.append((" ".join(overrides), message))
    assert not list(tmp_path.iterdir()), "a refused configuration left something on disk"
    return wrong


def test_a_bad_input_is_refused_by_name(tmp_path):
    assert refused(CASES[::12], tmp_path) == []


@pytest.mark.slow
def test_every_bad_input_is_refused_by_name(tmp_path):
    assert refused(CASES, tmp_path) == []


@pytest.mark.parametrize("override", ["mixer.name=5", "schedule.decay=2"])
def test_a_run_with_a_bad_input_leaves_nothing_on_disk(tmp_path, override):
    assert said([f"results_dir={tmp_path}/new", override], run) is not None
    assert not list(tmp_path.iterdir())
