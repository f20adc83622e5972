"""In-context recall, plain and noisy (MAD's "in-context-recall" and "noisy-in-context-recall")."""

from dataclasses import dataclass
from numbers import Real

import numpy as np

from mixerlab.tasks.base import IGNORE_INDEX, Split, Task, require, require_targets
from mixerlab.tasks.pairs import first_use


@dataclass(kw_only=True, eq=False)
class InContextRecall(Task):
    """Key/value pairs; the model must recall the value of each repeated key.

    Of the S = vocab_size - noise_vocab_size plain tokens, the first S // 2 are keys and the others values; the
    noise tokens have the last ids. A sequence is seq_len / 2 slots of two tokens. Each slot except the last holds a
    uniform key and its value (drawn uniformly when the key first appears in the sequence) or, with probability
    `frac_noise`, two noise tokens; one slot, uniform among all seq_len / 2, is exempt from noise. The last slot, the
    probe, repeats a key drawn uniformly among the distinct keys shown. Inputs leave out the last token, so
    T = seq_len - 1. With vocab_size=12, noise_vocab_size=4 (keys 0-3, values 4-7, noise 8-11) and seq_len=10:

        inputs          1   6   9  11   3   4   1   6   3
        train targets   6   9  11   3   4   1   6   3   4    the next token
        test targets    .   .   .   .   .   .   6   .   4    the value of each repeated key; . is -100

    Val has targets like test. Source: MAD (Poli et al. 2024) as mad-lab generates it, with multi_query=True.
    """

    frac_noise: float
    noise_vocab_size: int

    def __post_init__(self):
        super().__post_init__()
        self.require_int("noise_vocab_size", 0)
        is_share = isinstance(self.frac_noise, Real) and 0 <= self.frac_noise < 1
        self.demand(is_share, "frac_noise", "must be a number of at least 0 and below 1")
        self.frac_noise = float(self.frac_noise)
        has_noise = self.frac_noise == 0 or self.noise_vocab_size > 0
        self.demand(has_noise, "noise_vocab_size", f"task.frac_noise={self.frac_noise} needs noise tokens: at least 1")
        self.demand(self.seq_len % 2 == 0 and self.seq_len >= 4, "seq_len", "must be even and at least 4")
        self.num_plain: int = self.vocab_size - self.noise_vocab_size
        smallest = f"must be at least {self.noise_vocab_size + 4}, for two keys, two values and"
        self.demand(self.num_plain >= 4, "vocab_size", f"{smallest} {self.noise_vocab_size} noise tokens")
        self.num_keys: int = self.num_plain // 2

    @property
    def input_length(self) -> int:
        return self.seq_len - 1

    @property
    def madlab_code(self) -> str:  # type: ignore[override]  # mad-lab has two names for this class
        return "NR" if self.noise_vocab_size else "CR"

    @property
    def chance(self) -> float:
        return 1 / (self.num_plain - self.num_keys)

    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        context = self.seq_len // 2 - 1  # pair slots before the probe
        noise = self._draw_noise(num_rows, rng)
        keys = rng.integers(self.num_keys, size=(num_rows, context))
        # Every slot draws a value. The value drawn at a key's first use stays that key's value.
        values = rng.integers(self.num_keys, self.num_plain, size=(num_rows, context))
        first = first_use(np.where(noise, self.num_keys, keys))
        values = np.take_along_axis(values, first, axis=1)
        introduces = (first == np.arange(context)) & ~noise
        rank = rng.integers(introduces.sum(axis=1))
        probe_slot = np.argmax(np.cumsum(introduces, axis=1) > rank[:, None], axis=1)[:, None]

        pairs = np.empty((num_rows, context + 1, 2), dtype=np.int64)
        pairs[:, :-1, 0] = keys
        pairs[:, :-1, 1] = values
        pairs[:, :-1][noise] = rng.integers(self.num_plain, self.vocab_size, size=(noise.sum(), 2))
        pairs[:, -1, :1] = np.take_along_axis(keys, probe_slot, axis=1)
        pairs[:, -1, 1:] = np.take_along_axis(values, probe_slot, axis=1)
        tokens = pairs.reshape(num_rows, self.seq_len)
        return tokens[:, :-1], self._targets(tokens, split)

    def _targets(self, tokens: np.ndarray, split: Split) -> np.ndarray:
        """Of the slots `[N, seq_len]`, the last of which has its value, too."""
        if split == "train":
            return tokens[:, 1:]
        keys = tokens[:, ::2]
        repeats = (first_use(keys) < np.arange(keys.shape[1])) & (keys < self.num_keys)
        targets = np.full((len(tokens), self.input_length), IGNORE_INDEX, dtype=np.int64)
        targets[:, ::2] = np.where(repeats, tokens[:, 1::2], IGNORE_INDEX)
        return targets

    def _draw_noise(self, num_rows: int, rng: np.random.Generator) -> np.ndarray:
        """Which context slots are noise, bool `[num_rows, seq_len / 2 - 1]`; in every row at least one is not."""
        context = self.seq_len // 2 - 1
        if self.frac_noise == 0:
            return np.zeros((num_rows, context), dtype=bool)
        noise = rng.random((num_rows, context)) < self.frac_noise
        exempt = rng.integers(context + 1, size=num_rows)  # the last index is the probe, never noise
        rows = np.flatnonzero(exempt < context)
        noise[rows, exempt[rows]] = False
        # A context without a pair has no key to ask for (mad-lab crashes there): draw such rows again.
        empty = np.flatnonzero(noise.all(axis=1))
        if empty.size:
            noise[empty] = self._draw_noise(empty.size, rng)
        return noise

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        keys, values = inputs[:, ::2], inputs[:, 1::2]  # or noise
        slots = np.arange(keys.shape[1])
        noise = keys >= self.num_plain
        rule = f"even positions hold a key (0..{self.num_keys - 1}) or noise"
        require((keys < self.num_keys) | noise, "inputs", rule, 2 * slots)
        value_range = f"{self.num_keys}..{self.num_plain - 1}"
        rule = f"a key is followed by a value ({value_range}), a noise token by another noise token"
        is_noise = values >= self.num_plain
        fits = np.where(noise[:, :-1], is_noise, (values >= self.num_keys) & ~is_noise)
        require(fits, "inputs", rule, 2 * slots[:-1] + 1)
        require(~noise[:, -1], "inputs", "the last position asks for a key, never noise")

        first = first_use(keys)
        require(first[:, -1] < slots[-1], "inputs", "the key asked for at the end was shown before")
        stored = np.take_along_axis(values, first[:, :-1], axis=1)
        rule = "a key keeps its first value throughout its row"
        require(noise[:, :-1] | (values == stored), "inputs", rule, 2 * slots[:-1] + 1)
        answer = np.take_along_axis(values, first[:, -1:], axis=1)
        rule = "the next token" if split == "train" else "the value of each repeated key, -100 elsewhere"
        require_targets(targets, self._targets(np.concatenate([inputs, answer], axis=1), split), rule)
