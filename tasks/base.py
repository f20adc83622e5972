"""The contract of a task: it generates token sequences with targets, and checks that a dataset obeys it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np

from mixerlab.kernels.ignore_index import IGNORE_INDEX
from mixerlab.records.schema import ACCURACY, Score

Split = Literal["train", "val", "test"]
ArrayName = Literal["inputs", "targets"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

_ROWS_AT_ONCE = 128  # rows generated or checked together, few enough to stay in the caches


def split_rng(data_seed: int, split: Split) -> np.random.Generator:
    """The generator of one split: three independent streams of one seed."""
    return np.random.default_rng(np.random.SeedSequence(data_seed, spawn_key=(SPLITS.index(split),)))


class TaskRuleError(ValueError):
    """A dataset breaks a rule of its task.

    Attributes:
        array: the array that breaks it, "inputs" or "targets".
        row: the first row that breaks it; None if the whole array is wrong.
        rule: the rule in words.
    """

    def __init__(self, array: ArrayName, row: int | None, rule: str):
        where = array if row is None else f"{array}, row {row}"
        super().__init__(f"{where}: {rule}")
        self.array, self.row, self.rule = array, row, rule


@dataclass(kw_only=True, eq=False)
class Task(ABC):
    """One synthetic task at one difficulty.

    The fields are the parameters that the task's yaml must set. A subclass with more parameters is a dataclass, too,
    and adds them as fields. `__post_init__` raises a ValueError for a value that it cannot use; the message starts with
    `task.<key>=<value>`.

    Attributes:
        vocab_size: number of token ids, special tokens included.
        seq_len: the length in tokens as the benchmark counts it.
        num_train_examples, num_val_examples, num_test_examples: number of rows of each split.
        data_seed: seed from which the random streams of the three splits are derived.
        test_seq_len: `seq_len` of the test rows, if that is another one; None: that of the others.
        autoencode: True if the model must reconstruct its whole input from one vector.
        score: what runs are judged by, and which way is up; `score_from` makes it.
        madlab_code: mad-lab's short name of the task, part of the folder name of its cached datasets; None for a task
            whose datasets are neither read nor written.
    """

    autoencode: ClassVar[bool] = False
    score: ClassVar[Score] = ACCURACY
    madlab_code: ClassVar[str | None] = None

    vocab_size: int
    seq_len: int
    num_train_examples: int
    num_val_examples: int
    num_test_examples: int
    data_seed: int
    test_seq_len: int | None = None

    def __post_init__(self):
        for key in ("vocab_size", "seq_len", "num_train_examples", "num_val_examples", "num_test_examples"):
            self.require_int(key, 1)
        self.require_int("data_seed", 0)
        if self.test_seq_len is not None:
            self.require_int("test_seq_len", 1)
            self.demand(
                not self.autoencode, "test_seq_len", "an auto-encoder rebuilds rows of its own length: leave it null"
            )

    def require_int(self, key: str, minimum: int) -> None:
        """Raises a ValueError that names the parameter `key` unless it is a whole number >= `minimum`."""
        value = getattr(self, key)
        is_int = isinstance(value, Integral) and not isinstance(value, bool)
        self.demand(is_int and value >= minimum, key, f"must be a whole number of at least {minimum}")

    def demand(self, holds: bool, key: str, otherwise: str) -> None:
        """Raises a ValueError that names the parameter `key` and its value unless something `holds`."""
        if not holds:
            raise ValueError(f"task.{key}={getattr(self, key)}: {otherwise}")

    @property
    def input_length(self) -> int:
        """T, the number of positions of a row."""
        return self.seq_len

    def for_split(self, split: Split) -> Self:
        """The task that makes the rows of `split`: this one, or for test the same at `test_seq_len`.

        Raises:
            ValueError: the task cannot have that length.
        """
        if split != "test" or self.test_seq_len is None:
            return self
        try:
            return replace(self, seq_len=self.test_seq_len, test_seq_len=None)
        except ValueError as error:
            raise ValueError(f"task.test_seq_len={self.test_seq_len}: of the test rows, {error}") from error

    @property
    def chance(self) -> float | None:
        """The expected score on test of a uniform guess among the tokens that a target can be; None: not known."""
        return None

    def score_from(self, means: Mapping[str, Any], split: Split) -> Any:
        """The score of a split, from what is measured of it. A task whose score is none of these by name defines it.

        Args:
            means: over batches: `accuracy` (macro), `token_accuracy`, `loss` (nats for a scored token), `perplexity`;
                each a float32 tensor `[R]` of R replicas.

        Returns:
            A tensor like them, finite where the loss is; the run fails otherwise.
        """
        return means[self.score.name]

    @property
    def digest(self) -> str | None:
        """Of a task whose rows lie in files, SHA-256 of what they are cut from: part of a run's identity."""
        return None

    @property
    def trained_rows(self) -> int | None:
        """How many rows to train on, by the task's key `tokens`; None: as `trainer.epochs` says."""
        return None

    def splits(self) -> dict[Split, tuple[np.ndarray, np.ndarray]] | None:
        """Of a task whose rows lie in files, `(inputs, targets)` of each split, `[N, T]`, memory maps of integers.

        Every position has a target, and a row is read when a step needs it. None: rows are generated.
        """
        return None

    def num_examples(self, split: Split) -> int:
        """Rows of one split."""
        return getattr(self, f"num_{split}_examples")

    def generate(self, num_examples: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Returns `(inputs, targets)`, each int64 `[num_examples, T]`; `IGNORE_INDEX` marks unscored targets.

        Args:
            num_examples: how many rows.
            rng: what the rows are drawn from; the same state gives the same rows.
            split: `train`, `val` or `test`; some tasks ask for more in `train`.
        """
        inputs = np.empty((num_examples, self.input_length), dtype=np.int64)
        targets = np.empty_like(inputs)
        for start in range(0, num_examples, _ROWS_AT_ONCE):
            rows = slice(start, min(start + _ROWS_AT_ONCE, num_examples))
            inputs[rows], targets[rows] = self.generate_rows(rows.stop - rows.start, rng, split)
        return inputs, targets

    @abstractmethod
    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Generates a part of the rows: `(inputs, targets)`, each int64 `[num_rows, T]`. Called by `generate`."""

    @abstractmethod
    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        """Raises `TaskRuleError` for the first row that breaks a rule. Expected targets are computed from the inputs.

        Called by `check`, which has already checked shapes, dtype and token range, and passes a few rows at a time.
        """

    def check(self, inputs: np.ndarray, targets: np.ndarray, split: Split, most: int | None = None) -> None:
        """Raises `TaskRuleError` unless this task could have generated the arrays, each int64 `[N, T]`.

        `most`: `check_rules` sees at most so many rows, spread over all; None: every row.
        """
        arrays: dict[ArrayName, np.ndarray] = {"inputs": inputs, "targets": targets}
        for name, array in arrays.items():
            if array.dtype != np.int64:
                raise TaskRuleError(name, None, f"dtype is {array.dtype}, must be int64")
            shape = len(inputs), self.input_length
            if array.shape != shape:
                raise TaskRuleError(name, None, f"shape is {array.shape}, must be {shape}")
            allowed = f"0..{self.vocab_size - 1} (task.vocab_size={self.vocab_size})"
            ok = array.view(np.uint64) < self.vocab_size  # a negative number is a large one there
            if name == "targets":
                allowed += f" or {IGNORE_INDEX}, which is not scored"
                ok |= array == IGNORE_INDEX
            if not ok.all():
                require(ok, name, f"found {array.flat[np.argmin(ok)]}, must be in {allowed}")
        count = len(inputs)
        seen = np.linspace(0, count - 1, count if most is None else min(count, most)).astype(int)
        for start in range(0, len(seen), _ROWS_AT_ONCE):
            rows = seen[start : start + _ROWS_AT_ONCE]
            try:
                said = self.check_rules(inputs[rows], targets[rows], split)
            except TaskRuleError as error:
                if error.row is None:
                    raise
                raise TaskRuleError(error.array, int(rows[error.row]), error.rule) from None
            if said is not None:
                raise TypeError(f"check_rules gives {said!r}: it must raise TaskRuleError, as `require` does")


def require(ok: np.ndarray, array: ArrayName, rule: str, positions: np.ndarray | None = None) -> None:
    """Raises `TaskRuleError` for the first row of `ok` (bool `[N]` or `[N, M]`) that is not all true.

    `positions` (`[M]` or `[N, M]`) gives the position in the sequence of each column; by default column m is
    position m.
    """
    if ok.all():
        return
    if ok.ndim == 1:
        raise TaskRuleError(array, int(np.argmin(ok)), rule)
    row, column = np.unravel_index(np.argmin(ok), ok.shape)
    position = column if positions is None else np.broadcast_to(positions, ok.shape)[row, column]
    raise TaskRuleError(array, int(row), f"position {position}: {rule}")


def require_targets(targets: np.ndarray, expected: np.ndarray, rule: str) -> None:
    """Raises `TaskRuleError` for the first target that differs from the `expected` one, computed from the inputs."""
    ok = targets == expected
    if not ok.all():
        first = np.argmin(ok)
        require(ok, "targets", f"found {targets.flat[first]}, the inputs give {expected.flat[first]} ({rule})")
