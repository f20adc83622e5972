"""Selective copying of scattered tokens (MAD's "selective-copying")."""

from dataclasses import dataclass

import numpy as np

from mixerlab.tasks.base import IGNORE_INDEX, Split, Task, require, require_targets


@dataclass(kw_only=True, eq=False)
class SelectiveCopying(Task):
    """Data tokens are scattered among blanks; after the copy token, the model must write them out in order.

    The last token id is the copy token, the one before it the blank; all others are data. With
    c = num_tokens_to_copy, a row is c uniform data tokens, each after a gap of blanks, then the copy token, then c
    blanks at which the data tokens are the targets. The gaps are multinomial: each of the seq_len - 2c - 1 blanks of
    the gaps goes before one of the c tokens, chosen uniformly; none follows the last. With vocab_size=8 (data 0-5,
    blank 6, copy 7), num_tokens_to_copy=2, seq_len=8 and gaps of 1 and 2:

        inputs     6   3   6   6   5   7   6   6
        targets    .   .   .   .   .   .   3   5      . is -100

    All splits have the same form. Source: MAD (Poli et al. 2024) as mad-lab generates it.
    """

    madlab_code = "SC"

    num_tokens_to_copy: int

    def __post_init__(self):
        super().__post_init__()
        self.require_int("num_tokens_to_copy", 1)
        self.demand(self.vocab_size >= 4, "vocab_size", "must be at least 4, for two data tokens, blank and copy token")
        shortest = 2 * self.num_tokens_to_copy + 2
        short = f"too short for task.num_tokens_to_copy={self.num_tokens_to_copy}: must be at least {shortest}"
        self.demand(self.seq_len >= shortest, "seq_len", short)
        self.copy_token = self.vocab_size - 1
        self.blank_token = self.vocab_size - 2

    @property
    def chance(self) -> float:
        return 1 / self.blank_token

    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        c = self.num_tokens_to_copy
        num_blanks = self.seq_len - 2 * c - 1
        data = rng.integers(self.blank_token, size=(num_rows, c))
        gaps = rng.multinomial(num_blanks, np.full(c, 1 / c), size=num_rows)
        inputs = np.full((num_rows, self.seq_len), self.blank_token, dtype=np.int64)
        np.put_along_axis(inputs, np.arange(c) + np.cumsum(gaps, axis=1), data, axis=1)
        inputs[:, -c - 1] = self.copy_token
        return inputs, self._targets(inputs)

    def _targets(self, inputs: np.ndarray) -> np.ndarray:
        targets = np.full_like(inputs, IGNORE_INDEX)
        targets[:, -self.num_tokens_to_copy :] = inputs[inputs < self.blank_token].reshape(len(inputs), -1)
        return targets

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        c = self.num_tokens_to_copy
        copy_at = self.seq_len - c - 1
        body, tail = inputs[:, :copy_at], inputs[:, copy_at + 1 :]
        rule = f"position {copy_at} holds the copy token {self.copy_token}"
        require(inputs[:, copy_at] == self.copy_token, "inputs", rule)
        rule = f"the copy token {self.copy_token} appears only at position {copy_at}"
        require(body != self.copy_token, "inputs", rule)
        rule = f"blanks ({self.blank_token}) follow the copy token"
        require(tail == self.blank_token, "inputs", rule, np.arange(copy_at + 1, self.seq_len))
        is_data = body < self.blank_token
        require(is_data.sum(axis=1) == c, "inputs", f"exactly {c} data tokens stand before the copy token")
        require(is_data[:, -1], "inputs", f"the last data token stands at position {copy_at - 1}")
        require_targets(targets, self._targets(inputs), "the data tokens in order on the last positions, -100 before")
