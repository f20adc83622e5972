"""What the user's code may raise, what an error says in one line, and where in the user's code it arose.

Whatever a user has to change raises a `ValueError` of one line, here and above, and what the disk refuses an `OSError`.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import FrameType

from mixerlab.records.text import one_line

LIBRARIES = {"torch", "hydra", "omegaconf", "lightning", "triton", *sys.stdlib_module_names}
INSTALLED = {"site-packages", "dist-packages"}


class Exited(Exception):
    """The user's code raised what is no `Exception`, such as `SystemExit`; the message has its type and words."""


class Terminated(SystemExit):
    """SIGTERM came. It is not the run that failed."""


class RefusedCode(ValueError):
    """The user's code is not as it must be; the message says what to change, and needs no place and no traceback."""


class RefusedMixer(RefusedCode):
    """Of the user's code it is a mixer, which the message does not name."""


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


def with_place(error: BaseException) -> str:
    """One line: what `error` says, and `function (file:line)` of the innermost frame of the user's code.

    It says its type and message or, as a ValueError, its message alone. The user's is code outside mixerlab, PyTorch
    and the other libraries that call a mixer; mixerlab's mixers count as a user's, but for a ValueError that mixerlab
    raises, which says what to change. If the user's code calls an installed package, as a wrapped layer does, it is the
    user's line that is named.
    """
    trace = list(traceback.walk_tb(error.__traceback__))
    is_refusal = isinstance(error, ValueError)
    said = (is_refusal and message_of(error)) or type_and_message(error)
    is_ours = is_refusal and bool(trace) and _package(trace[-1][0]) == "mixerlab"
    frames = [(frame, line) for frame, line in trace if _may_be_the_users(frame, is_ours)]
    own = [(frame, line) for frame, line in frames if not INSTALLED & set(Path(frame.f_code.co_filename).parts)]
    if not frames:
        return said
    frame, line = (own or frames)[-1]
    return f"{said}, in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})"


def _package(frame: FrameType) -> str:
    return frame.f_globals.get("__name__", "").partition(".")[0]


def _may_be_the_users(frame: FrameType, is_ours: bool) -> bool:
    package = _package(frame)
    if package == "mixerlab":
        return not is_ours and frame.f_globals["__name__"].startswith("mixerlab.mixers.")
    return package not in LIBRARIES and not frame.f_code.co_filename.startswith("<")


def type_and_message(error: BaseException) -> str:
    """One line: the type of `error` and its message, if it has one."""
    message = message_of(error)
    if isinstance(error, Exited):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def reason(error: BaseException) -> str:
    """One line: the message of a ValueError or of the system, which says all; of another error its type as well."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return message_of(error) if isinstance(error, ValueError) else type_and_message(error)


def message_of(error: BaseException) -> str:
    """One line: the message of `error`, 500 characters of it at most."""
    return one_line(str(error))[:500]
