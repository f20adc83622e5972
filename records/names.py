"""The order of mixers, tasks and settings, the same in every table and figure, and what their names say."""

import math
import re
from collections.abc import Iterable

MIXERS = ("attn", "parallax", "gdn", "mamba", "mesa")
TASKS: tuple[str, ...] = ("icr", "ncr", "fcr", "mem", "cmp", "sc", "icr_challenge", "ncr_challenge", "sc_challenge")
TASKS += ("icr_vocab_challenge", "ncr_vocab_challenge", "sc_vocab16_challenge")
BASELINE = "baseline"
AVERAGE = "Avg"  # the row of the tasks' mean, which no task can be named

_NUMBER = re.compile(r"((?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_PARAMETER = re.compile(r"[a-z]+(?:_[a-z0-9]+)*")  # the first word without digits: `s3-128` is a level too


def in_order(names: Iterable[str], known: tuple[str, ...]) -> list[str]:
    """Distinct `names`: the `known` ones in their order, then the others alphabetically, numbers by their value."""
    return sorted(set(names), key=lambda name: rank(name, known))


def rank(name: str, known: tuple[str, ...]) -> tuple:
    """Sort key of one name in the order of `in_order`."""
    return (known.index(name) if name in known else len(known), *natural(name))


def natural(text: str) -> list[str | float]:
    """Sort key of a text whose numbers count by their value."""
    return [float(part) if i % 2 else part for i, part in enumerate(_NUMBER.split(text))]


def averaged(tasks: Iterable[str]) -> list[str]:
    """The tasks that their average is over: MAD's, else those of the harder set, else all."""
    tasks = in_order(tasks, TASKS)
    known = [task for task in tasks if task in TASKS]
    return [task for task in known if not is_challenge(task)] or known or tasks


def is_challenge(task: str) -> bool:
    """Whether a task belongs to the harder set, which has a table of its own and no part in the average."""
    return task.endswith("_challenge")


def axis_of(setting: str) -> tuple[str, str, float] | None:
    """From which setting this one departs, by which key, and its value; None for the baseline and other names.

    `("baseline", "seq_len", 512.0)` for `seq_len-512` or `seq_len=512`, and of several keys by the last:
    `("S3-128", "test_seq_len", 256.0)` for `S3-128,test_seq_len=256`. A key has words of lower case: `S3-128` is none.
    """
    origin, _, last = setting.rpartition(",")
    key, equals, value = last.partition("=")
    if not equals:
        key, _, value = last.rpartition("-")
    if _PARAMETER.fullmatch(key) is None:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return (origin or BASELINE, key, number) if math.isfinite(number) else None


def has_other_test_length(setting: str) -> bool:
    """Whether test rows have another length than those of training, as in `S3-128,test_seq_len=256`."""
    axis = axis_of(setting)
    return axis is not None and axis[1] == "test_seq_len"


def place_rank(place: tuple[str, str]) -> tuple:
    """Sort key of a task and one of its settings: the baseline, axis by axis by value, then others by their numbers.

    Test rows of another length stand behind the level that they are of.
    """
    task, setting = rank(place[0], TASKS), place[1]
    if setting == BASELINE:
        return task, (0,)
    axis = axis_of(setting)
    if axis is not None and axis_of(setting.partition(",")[0]) is not None:
        return task, (1, *axis)
    return task, (2, *natural(setting))
