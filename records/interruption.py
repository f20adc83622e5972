"""How a run is told to stop: SIGTERM raises `Terminated`, wherever the program is; the user's code cannot stop it."""

import signal
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from types import FrameType

from mixerlab.records.errors import Exited, type_and_message

# What the command of a run that was stopped does when it is given again.
GOES_ON = "goes on from the last checkpoint, or from the start if there is none yet"


class Terminated(SystemExit):
    """SIGTERM came. It is not the run that failed."""


@contextmanager
def users_code() -> Iterator[None]:
    """Within the block the user's code is called: it raises an `Exception`, unless Ctrl-C or SIGTERM came.

    An error behind which there is one of these is raised as that one: what is interrupted halfway often ends in an
    error of its own, as PyTorch's writer of checkpoints does, and Lightning makes `SystemExit` of Ctrl-C. That is no
    failed run. Any other `SystemExit` is an error like others (`Exited`). The working folder stays what it was.
    """
    try:
        with chdir("."):
            yield
    except BaseException as error:
        behind: BaseException | None = error
        while behind is not None:
            if isinstance(behind, KeyboardInterrupt | Terminated):
                raise behind from None
            behind = behind.__context__
        if isinstance(error, Exception):
            raise
        # With its traceback, which has the place in the user's code.
        raise Exited(type_and_message(error)).with_traceback(error.__traceback__) from error


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated`. Only in the main thread."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)
