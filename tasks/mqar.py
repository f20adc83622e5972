"""Multi-query associative recall (zoology's MQAR)."""

from dataclasses import dataclass
from numbers import Real

import numpy as np

from mixerlab.tasks.base import IGNORE_INDEX, Split, Task, require, require_targets
from mixerlab.tasks.pairs import first_use


@dataclass(kw_only=True, eq=False)
class MultiQueryRecall(Task):
    """Key/value pairs, then each key once more among filler: at a repeated key the model must give its value.

    Tokens 1 to V/2 - 1 are keys and V/2 to V - 1 values, with V = vocab_size; 0 is empty. A row begins with
    P = num_kv_pairs pairs of distinct keys and distinct values, all uniform. The rest is (seq_len - 2 P) / 2 slots of
    two tokens. Each key is asked for in the first token of a slot of its own: the pairs take their slots one after
    the other, each the i-th one (from 1, among those still free) with a probability proportional to
    i^(power_a - 1). power_a=1 is uniform; at 0.01, as published, most keys are asked for soon after the pairs. All
    other tokens are empty or, with `random_non_queries`, uniform over the whole vocabulary. With vocab_size=12,
    num_kv_pairs=2, seq_len=16, random_non_queries=False and slots 2 (for key 4) and 5 (for key 2), from 0:

        inputs     2   8   4   7   0   0   0   0   4   0   0   0   0   0   2   0
        targets    .   .   .   .   .   .   .   .   7   .   .   .   .   .   8   .      . is -100

    All splits have the same form. A guess among the values is right with probability 2 / V (`chance`), one among the
    values of the row with probability 1 / P; the mean over classes of a batch, which holds few of them, is lower still.

    Source: Arora, Eyuboglu et al. (2023), "Zoology", arXiv:2312.04927; the rules are those of its code
    (github.com/HazyResearch/zoology, `multiquery_ar.py`, one pass).
    """

    num_kv_pairs: int
    power_a: float
    random_non_queries: bool

    def __post_init__(self):
        super().__post_init__()
        self.require_int("num_kv_pairs", 1)
        is_number = isinstance(self.power_a, Real) and not isinstance(self.power_a, bool)
        self.demand(is_number and 0 < self.power_a < np.inf, "power_a", "must be a finite number above 0")
        pairs = f"for task.num_kv_pairs={self.num_kv_pairs}"
        long_enough = self.seq_len % 2 == 0 and self.seq_len >= 4 * self.num_kv_pairs
        self.demand(long_enough, "seq_len", f"must be even and at least {4 * self.num_kv_pairs}, {pairs} and its slots")
        self.first_value: int = self.vocab_size // 2
        large_enough = self.first_value - 1 >= self.num_kv_pairs
        self.demand(large_enough, "vocab_size", f"must be at least {2 * self.num_kv_pairs + 2}, {pairs}")
        self.context: int = 2 * self.num_kv_pairs  # positions of the pairs
        self.num_slots: int = (self.seq_len - self.context) // 2

    @property
    def chance(self) -> float:
        return 1 / (self.vocab_size - self.first_value)

    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        keys = _distinct(1, self.first_value, (num_rows, self.num_kv_pairs), rng)
        values = _distinct(self.first_value, self.vocab_size, (num_rows, self.num_kv_pairs), rng)
        # Arrival times of independent exponential clocks: the order in which those of these rates ring is the order in
        # which slots are drawn one after the other, without replacement, with these weights.
        weights = np.arange(1, self.num_slots + 1) ** (self.power_a - 1.0)
        clocks = rng.exponential(size=(num_rows, self.num_slots)) / weights
        slots = np.argsort(clocks, axis=1)[:, : self.num_kv_pairs]
        asked_at = self.context + 2 * slots

        inputs = np.zeros((num_rows, self.seq_len), dtype=np.int64)
        if self.random_non_queries:
            inputs[:] = rng.integers(self.vocab_size, size=inputs.shape)
        inputs[:, 0 : self.context : 2] = keys
        inputs[:, 1 : self.context : 2] = values
        np.put_along_axis(inputs, asked_at, keys, axis=1)
        targets = np.full_like(inputs, IGNORE_INDEX)
        np.put_along_axis(targets, asked_at, values, axis=1)
        return inputs, targets

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        pairs = np.arange(self.num_kv_pairs)
        keys, values = inputs[:, 0 : self.context : 2], inputs[:, 1 : self.context : 2]
        is_key, is_value = (keys >= 1) & (keys < self.first_value), values >= self.first_value
        require(is_key, "inputs", f"a pair begins with a key (1..{self.first_value - 1})", 2 * pairs)
        value_range = f"{self.first_value}..{self.vocab_size - 1}"
        require(is_value, "inputs", f"a pair ends with a value ({value_range})", 2 * pairs + 1)
        for tokens, what, places in ((keys, "keys", 2 * pairs), (values, "values", 2 * pairs + 1)):
            require(first_use(tokens) == pairs, "inputs", f"the {what} of a row are distinct", places)

        scored = targets != IGNORE_INDEX
        positions = np.arange(self.seq_len)
        is_slot = (positions >= self.context) & (positions % 2 == 0)
        require(~scored | is_slot, "targets", "only the first token of a slot behind the pairs asks for a value")
        require(scored.sum(axis=1) == self.num_kv_pairs, "targets", f"{self.num_kv_pairs} positions are scored")
        asked_at = np.nonzero(scored)[1].reshape(keys.shape)
        asked = np.take_along_axis(inputs, asked_at, axis=1)
        is_of_pair = asked[:, :, None] == keys[:, None, :]
        require(is_of_pair.any(axis=2), "inputs", "a scored position holds the key of a pair", asked_at)
        require(is_of_pair.any(axis=1), "targets", "each key is asked for once", 2 * pairs)
        expected = np.full_like(targets, IGNORE_INDEX)
        np.put_along_axis(expected, asked_at, np.take_along_axis(values, is_of_pair.argmax(axis=2), axis=1), axis=1)
        require_targets(targets, expected, "the value of the key")
        if not self.random_non_queries:
            filler = (positions >= self.context) & ~scored
            require(~filler | (inputs == 0), "inputs", "what asks for nothing is empty (0)")


def _distinct(low: int, high: int, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Rows of distinct integers from `low` to `high` - 1, each ordered choice equally likely: int64 `shape`."""
    if 4 * shape[1] > high - low:
        return low + np.argsort(rng.random((shape[0], high - low)), axis=1)[:, : shape[1]]
    # Of a few among many: repeats are drawn again until there are none. No integer is treated unlike another.
    drawn = rng.integers(low, high, size=shape)
    while (repeats := first_use(drawn) < np.arange(shape[1])).any():
        drawn[repeats] = rng.integers(low, high, size=np.count_nonzero(repeats))
    return drawn
