"""The contract of a task: it generates token sequences with targets, and checks that a dataset obeys it."""

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np

IGNORE_INDEX = -100  # a target that neither the loss nor the accuracy counts

Split = Literal["train", "val", "test"]


class TaskRuleError(ValueError):
    """A dataset breaks a rule of its task; says which row and which rule."""


class Task(ABC):
    """One synthetic task at one difficulty.

    Attributes:
        vocab_size: number of token ids, special tokens included.
        input_length: T, the number of positions of one example.
        num_train_examples, num_val_examples, num_test_examples: rows of each split.
        data_seed: the seed of the three split streams.
        autoencode: True where the model must rebuild its whole input from one vector.
    """

    vocab_size: int
    input_length: int
    num_train_examples: int
    num_val_examples: int
    num_test_examples: int
    data_seed: int
    autoencode: bool = False

    @abstractmethod
    def generate(
        self, num_examples: int, rng: np.random.Generator, split: Split
    ) -> tuple[np.ndarray, np.ndarray]:
        """`(inputs, targets)`, int64 `[num_examples, T]`; `IGNORE_INDEX` marks unscored targets."""

    @abstractmethod
    def check(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        """Raises `TaskRuleError` for the first row that breaks a rule (targets are rebuilt from inputs)."""
