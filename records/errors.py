"""What an error says in one line, and where in the user's code it arose.

Whatever a user has to change raises a `ValueError` of one line, here and above, and what the disk refuses an `OSError`.
"""

import sys
import traceback
from pathlib import Path
from types import FrameType

from mixerlab.records.text import one_line

LIBRARIES = {"torch", "hydra", "omegaconf", "lightning", "triton", *sys.stdlib_module_names}
INSTALLED = {"site-packages", "dist-packages"}


class Exited(Exception):
    """The user's code raised what is no `Exception`, such as `SystemExit`; the message has its type and words."""


class RefusedCode(ValueError):
    """The user's code is not as it must be; the message says what to change, and needs no place and no traceback."""


class RefusedMixer(RefusedCode):
    """Of the user's code it is a mixer, which the message does not name."""


def with_place(error: BaseException) -> str:
    """One line: the type of `error`, its message, and `function (file:line)` of the innermost frame of the user's code.

    That is code outside mixerlab (its mixers count as a user's), PyTorch and the other libraries that call a mixer. If
    the user's code calls an installed package, as a wrapped layer does, it is the user's line that is named.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _may_be_the_users(frame)]
    own = [(frame, line) for frame, line in frames if not INSTALLED & set(Path(frame.f_code.co_filename).parts)]
    if not frames:
        return type_and_message(error)
    frame, line = (own or frames)[-1]
    return f"{type_and_message(error)}, in {frame.f_code.co_qualname} ({frame.f_code.co_filename}:{line})"


def _may_be_the_users(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    package = module.partition(".")[0]
    if package == "mixerlab":
        return module.startswith("mixerlab.mixers.")
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
