"""The rows of a split as its task generates them, checked: a mistake in a user's own task would train unnoticed."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mixerlab.records.errors import RefusedCode, users_code, with_place
from mixerlab.tasks.base import IGNORE_INDEX, Split, Task, TaskRuleError, split_rng

_FIRST_ROWS = 32  # drawn twice before the split is generated
_RULE_ROWS = 256  # of which `check_rules` sees, spread over the split

Arrays = tuple[np.ndarray, np.ndarray]  # inputs, targets


class WrongRows(RefusedCode):
    """A task's rows cannot be generated, or are not as they must be; the message does not say `task=<name>`."""


def make_split(task: Task, split: Split) -> Arrays:
    """The split's `(inputs, targets)`, each int64 `[N, T]`; the same for the same task and data seed.

    Raises:
        WrongRows: the task's code raises an error; rows have another form, are not integers or not in the vocabulary,
            or differ when they are drawn again; or rows of a sample break `check_rules`.
    """
    own, num_rows = task.for_split(split), task.num_examples(split)

    def first_rows() -> Arrays:
        """What `generate_rows` itself gives: `Task.generate` casts it to int64, and repeats a single row."""
        number = min(num_rows, _FIRST_ROWS)
        return _pair(own, split, own.generate_rows(number, split_rng(task.data_seed, split), split), number)

    try:
        with users_code():
            if not all(map(np.array_equal, first_rows(), first_rows())):
                raise WrongRows(
                    f"{split} rows differ when they are generated again from the same seed: draw all that is random"
                    f" from the generator `rng`, and keep nothing between calls, in {_place(own.generate_rows)}"
                )
            arrays = own.generate(num_rows, split_rng(task.data_seed, split), split)
            own.check(*arrays, split, most=_RULE_ROWS)
    except TaskRuleError as error:
        made, checked = _place(own.generate_rows), _place(own.check_rules)
        raise WrongRows(f"{split} {error}, in {made}, checked by {checked}") from error
    except WrongRows:
        raise
    except Exception as error:
        raise WrongRows(f"{split} rows: {with_place(error)}") from error
    return arrays


def _pair(task: Task, split: Split, given: Any, num_rows: int) -> Arrays:
    """`given` as arrays; WrongRows unless it is `(inputs, targets)`, integers of the task's shape."""
    shape = num_rows, task.input_length
    wanted = f"two integer arrays of shape {shape}"

    def wrong(what: str) -> WrongRows:
        return WrongRows(f"{split} {what}, in {_place(task.generate_rows)}")

    try:
        inputs, targets = given
    except (TypeError, ValueError):
        raise wrong(f"rows: found {type(given).__name__}, must be (inputs, targets), {wanted}") from None
    try:
        arrays = np.asarray(inputs), np.asarray(targets)
    except ValueError:  # NumPy's own speaks of an inhomogeneous shape
        raise wrong(f"rows: rows differ in length, must be {wanted}: fill targets with {IGNORE_INDEX}") from None
    for name, array in zip(("inputs", "targets"), arrays, strict=True):
        if array.shape != shape:
            raise wrong(f"{name}: shape is {array.shape}, must be {shape}, rows and tokens (num_rows, input_length)")
        if array.dtype.kind not in "iub":
            raise wrong(f"{name}: dtype is {array.dtype}, must be int64")
    return arrays[0].astype(np.int64, copy=False), arrays[1].astype(np.int64, copy=False)


def _place(method: Callable) -> str:
    """`function (file:line)`."""
    code = inspect.unwrap(method).__code__
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
