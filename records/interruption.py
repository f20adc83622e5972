"""How a run is told to stop: SIGTERM raises `Terminated`, wherever the program is."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What the command of a run that was stopped does when it is given again.
GOES_ON = "goes on from the last checkpoint, or from the start if there is none yet"


class Terminated(SystemExit):
    """SIGTERM came. It is not the run that failed."""


@contextmanager
def interruptions_unwrapped() -> Iterator[None]:
    """Within the block, an error behind which there is a Ctrl-C or a SIGTERM is raised as that one.

    What is interrupted halfway often ends in an error of its own: PyTorch's writer of checkpoints does, and Lightning
    makes `SystemExit` of Ctrl-C. That is no failed run.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        behind: BaseException | None = error
        while behind is not None:
            if isinstance(behind, KeyboardInterrupt | Terminated):
                raise behind from None
            behind = behind.__context__
        raise


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """Within the block SIGTERM raises `Terminated` in the main thread; in another thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(128 + number)
