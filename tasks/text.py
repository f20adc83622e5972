"""Language modelling on a text, or on ids of tokens in files: each position asks for the next token."""

import glob
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mixerlab.records.schema import Score
from mixerlab.tasks.base import SPLITS, Split, Task, require_targets
from mixerlab.tasks.corpus import Corpus, corpus_of, is_text, tokenizers_library


@dataclass(kw_only=True, eq=False)
class Text(Task):
    """The next token of a text, at every position.

    Attributes:
        path: a file, or a pattern such as `books/*.txt` for several, joined in the order of their names: text, or ids
            of tokens in a `.npy`, or in a `.bin` of uint16 (uint32 if `vocab_size` is above 65,536).
        tokens: how many to train on; all of the training part once, then again in another order, and so on. None: for
            `trainer.epochs`.
        bpe: the size of a byte-level BPE vocabulary, which is trained on the training part; None: a token is a byte.
        vocab_size: of ids. Of text it follows from `bpe`.
        num_train_examples, num_val_examples, num_test_examples: the first so many rows of a split; None: all.
        data_seed: of no use, as nothing is drawn; part of a run's identity.
    """

    path: str
    tokens: float | None
    bpe: int | None = None
    vocab_size: int | None = None  # type: ignore[assignment]
    num_train_examples: int | None = None  # type: ignore[assignment]
    num_val_examples: int | None = None  # type: ignore[assignment]
    num_test_examples: int | None = None  # type: ignore[assignment]
    data_seed: int = 12345

    def __post_init__(self):
        optional = ("vocab_size", "num_train_examples", "num_val_examples", "num_test_examples", "test_seq_len")
        for key in ("seq_len", *(key for key in optional if getattr(self, key) is not None)):
            self.require_int(key, 1)
        self.demand(self.tokens is None or 1 <= self.tokens < math.inf, "tokens", "must be at least 1 and finite")
        if self.bpe is not None:
            self.require_int("bpe", 257)
        path = os.path.expanduser(self.path)
        found = [path] if os.path.isfile(path) else glob.glob(path, recursive=True)  # a name may have brackets
        self.files = sorted(filter(os.path.isfile, found)) or [path]  # a model is loaded without its text
        of_text = set(map(is_text, self.files))
        self.demand(len(of_text) == 1, "path", "has files of text and files of ids")
        (self.is_text,) = of_text
        self.demand(self.is_text or self.bpe is None, "bpe", f"{self.files[0]} has ids of tokens already")
        self.demand(not self.files[0].endswith(".npy") or len(self.files) == 1, "path", "give one .npy")
        if self.is_text:
            wanted = self.bpe or 256
            self.demand(self.vocab_size in (None, wanted), "vocab_size", f"text has {wanted} tokens: leave it null")
            self.vocab_size = wanted
        self.demand(self.vocab_size is not None, "vocab_size", "say how many ids there are")

    @cached_property
    def corpus(self) -> Corpus:
        """As it lies on disk; what of it takes long is made, unless it is there."""
        missing = "a folder" if os.path.isdir(self.files[0]) else "no such file"
        there = os.path.isfile(self.files[0])
        self.demand(there, "path", f"{missing}: give a file, or a pattern such as 'books/**/*.txt'")
        assert self.vocab_size is not None
        corpus = corpus_of(self.files, self.bpe, np.dtype("<u4" if self.vocab_size > 2**16 else "<u2"))
        self.demand(corpus.largest < self.vocab_size, "vocab_size", f"the largest id is {corpus.largest}")
        return corpus

    @property
    def digest(self) -> str:
        return self.corpus.sha256

    @property
    def trained_rows(self) -> int | None:
        return None if self.tokens is None else -(-int(self.tokens) // self.seq_len)

    def num_examples(self, split: Split) -> int:
        return len(self.splits()[split][0])

    def splits(self) -> dict[Split, tuple[np.ndarray, np.ndarray]]:
        return {split: self.for_split(split)._rows(split) for split in SPLITS}

    def _rows(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        ids, wanted = self.corpus.ids[split], super().num_examples(split)
        there = (len(ids) - 1) // self.seq_len
        key = "seq_len" if wanted is None else f"num_{split}_examples"
        few = f"the {split} part has {len(ids):,} tokens, {there:,} rows of {self.seq_len} with the next token of each"
        self.demand(there >= (wanted or 1), key, f"{few}: lower it, or give a longer text")
        windows = np.lib.stride_tricks.sliding_window_view(ids, self.seq_len + 1, subok=True)
        rows = windows[:: self.seq_len][:wanted]
        return rows[:, :-1], rows[:, 1:]

    def generate_rows(self, num_rows: int, rng: np.random.Generator, split: Split) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = self._rows(split)
        chosen = rng.integers(len(inputs), size=num_rows)
        return inputs[chosen].astype(np.int64), targets[chosen].astype(np.int64)

    def check_rules(self, inputs: np.ndarray, targets: np.ndarray, split: Split) -> None:
        require_targets(targets[:, :-1], inputs[:, 1:], "the next token")

    @property
    def score(self) -> Score:  # type: ignore[override]
        return Score("bits_per_byte" if self.is_text else "bits_per_token", higher_is_better=False)

    def score_from(self, means: Mapping[str, Any], split: Split) -> Any:
        return means["loss"] / (math.log(2) * self._bytes_per_target[split])

    @cached_property
    def _bytes_per_target(self) -> dict[Split, float]:
        """Mean over the held-out rows; of ids, whose text is not known, 1."""
        if self.bpe is None:
            return {"val": 1.0, "test": 1.0}
        lengths = np.zeros(self.bpe)
        for token, number in self._tokenizer.get_vocab().items():
            lengths[number] = len(token)  # a byte-level BPE writes each byte as a character
        splits = self.splits()
        return {split: lengths[splits[split][1]].mean() for split in ("val", "test")}

    def encode(self, text: str) -> list[int]:
        """The ids of a text; ValueError if the corpus has ids only."""
        self.demand(self.is_text, "path", "has ids of tokens and no text")
        return list(text.encode()) if self.bpe is None else self._tokenizer.encode(text).ids

    def decode(self, ids: list[int]) -> str:
        """The text of ids."""
        return bytes(ids).decode(errors="replace") if self.bpe is None else self._tokenizer.decode(ids)

    @cached_property
    def _tokenizer(self) -> Any:
        return tokenizers_library().Tokenizer.from_file(str(self.corpus.tokenizer))
