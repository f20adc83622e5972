"""Memorization of one fixed key/value map (MAD's "memorization")."""

from dataclasses import dataclass

import numpy as np

from mixerlab.tasks.base import IGNORE_INDEX, Split, Task, require, require_targets


@dataclass(kw_only=True, eq=False)
class Memorization(Task):
    """The model must memorize a fixed map from keys to values: the values never appear in the inputs.

    The last token id is the insert token. Of the S = vocab_size - 1 other tokens, the first S // 2 are keys and the
    rest values. Uniform keys alternate with the insert token, at which the target is the key's value. With
    vocab_size=9 (keys 0-3, values 4-7, insert 8), seq_len=6 and a map that sends 2 to 5 and 0 to 7:

        inputs     2   8   0   8   2   8
        targets    .   5   .   7   .   5      . is -100

    All splits have the same form. `map_seed` fixes the map: a generator with that seed shuffles the keys, then the
    values, and pairs them in this order; 12345 gives mad-lab's own map. A small training set does not contain all
    keys of a large vocabulary, which limits the accuracy that a model can reach.
    Source: MAD (Poli et al. 2024) as mad-lab generates it.
    """

    madlab_code = "M"

    map_seed: int

    def __post_init__(self):
        super().__post_init__()
        self.require_int("map_seed", 0)
        self.demand(self.vocab_size >= 5, "vocab_size", "must be at least 5, for two keys, two values, insert token")
        self.demand(self.seq_len % 2 == 0, "seq_len", "must be even, because keys and insert tokens alternate")
        self.insert_token = self.vocab_size - 1
        self.num_keys = self.insert_token // 2
        rng = np.random.default_rng(self.map_seed)
        keys = np.arange(self.num_keys)
        values = np.arange(self.num_keys, self.insert_token)
        rng.shuffle(keys)
        rng.shuffle(values)
        self.value_of = np.empty(self.num_keys, dtype=np.int64)  # indexed by key
        self.value_of[keys] = values[: self.num_keys]

    @property
    def chance(self) -> float:
        return 1 / (self.insert_token - self.num_keys)

    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        keys = rng.integers(self.num_keys, size=(num_rows, self.seq_len // 2))
        inputs = np.full((num_rows, self.seq_len), self.insert_token, dtype=np.int64)
        inputs[:, ::2] = keys
        return inputs, self._targets(inputs)

    def _targets(self, inputs: np.ndarray) -> np.ndarray:
        targets = np.full_like(inputs, IGNORE_INDEX)
        targets[:, 1::2] = self.value_of[inputs[:, ::2]]
        return targets

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        evens = np.arange(0, self.seq_len, 2)
        rule = f"even positions hold a key (0..{self.num_keys - 1})"
        require(inputs[:, ::2] < self.num_keys, "inputs", rule, evens)
        rule = f"odd positions hold the insert token {self.insert_token}"
        require(inputs[:, 1::2] == self.insert_token, "inputs", rule, evens + 1)
        rule = f"the mapped value at odd positions, map_seed={self.map_seed}"
        require_targets(targets, self._targets(inputs), rule)
