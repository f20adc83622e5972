"""Compression of a random sequence into one vector (MAD's "compression")."""

import numpy as np

from mixerlab.tasks.base import Split, Task, require, require_targets


class Compression(Task):
    """Random tokens, then a compress token: the model must reconstruct the sequence from the vector at that token.

    The last token id is the compress token; all other tokens are uniform. With vocab_size=9 (compress token 8) and
    seq_len=6:

        inputs     3   0   7   3   5   8
        targets    3   0   7   3   5   8

    Every position is scored, including the compress token. All splits have the same form.
    Source: MAD (Poli et al. 2024) as mad-lab generates it.
    """

    autoencode = True
    madlab_code = "C"

    def __post_init__(self):
        super().__post_init__()
        self.demand(self.vocab_size >= 3, "vocab_size", "must be at least 3, for two tokens and the compress token")
        self.demand(self.seq_len >= 2, "seq_len", "must be at least 2, for a token and the compress token")
        self.compress_token = self.vocab_size - 1

    @property
    def chance(self) -> float:
        """The compress token is one of `vocab_size` classes, each of which counts as much, and is never in doubt."""
        return 2 / self.vocab_size

    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        inputs = np.full((num_rows, self.seq_len), self.compress_token, dtype=np.int64)
        inputs[:, :-1] = rng.integers(self.compress_token, size=(num_rows, self.seq_len - 1))
        return inputs, inputs

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        is_compress = inputs == self.compress_token
        token = f"the compress token {self.compress_token}"
        require(is_compress[:, -1], "inputs", f"the last position holds {token}")
        require(~is_compress[:, :-1], "inputs", f"{token} appears only at the last position")
        require_targets(targets, inputs, "the inputs themselves")
