"""Text, or ids of tokens in a file: each position asks for the next token.

The corpus is memory-mapped, and rows are windows of it, side by side: its first part is for training, then comes
validation, and test is the end. What takes long is made once and kept beside the first file, in the folder `.mixerlab`:
the digest, several files joined, and with `bpe` the tokenizer and the ids of each split. A name there says the path,
size and time of the files that it was made of.
"""

import glob
import hashlib
import itertools
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from mixerlab.records.atomic import replace_file
from mixerlab.records.schema import Score
from mixerlab.tasks.base import SPLITS, Split, Task, require_targets

log = logging.getLogger(__name__)

_OF_IDS = (".bin", ".npy")
HELD_OUT = 2**20  # bytes or ids that validation and test have each, at most
_SHARE = 20  # and they have at most one in so many
_PIECE = 2**18  # bytes that are encoded at once; `bpe` is trained on at most `_LEARNED`
_LEARNED = 2**28


class Corpus(NamedTuple):
    """The token ids of each split, one-dimensional memory maps, and the SHA-256 and the largest of all ids.

    `tokenizer`: the file of `bpe`'s.
    """

    ids: dict[Split, np.ndarray]
    sha256: str
    largest: int
    tokenizer: Path | None


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
        self.demand(self.tokens is None or self.tokens >= 1, "tokens", "must be at least 1")
        if self.bpe is not None:
            self.require_int("bpe", 257)
        path = os.path.expanduser(self.path)
        found = [path] if os.path.isfile(path) else glob.glob(path, recursive=True)  # a name may have brackets
        self.files = sorted(filter(os.path.isfile, found)) or [path]  # a model is loaded without its text
        of_text = {Path(file).suffix not in _OF_IDS for file in self.files}
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
        written = tuple((os.path.abspath(file), (s := os.stat(file)).st_size, s.st_mtime_ns) for file in self.files)
        assert self.vocab_size is not None
        corpus = _corpus(written, self.bpe, np.dtype("<u4" if self.vocab_size > 2**16 else "<u2"))
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
        return _tokenizers().Tokenizer.from_file(str(self.corpus.tokenizer))


@lru_cache(maxsize=8)  # the cells of a sweep share their corpus
def _corpus(written: tuple[tuple[str, int, int], ...], bpe: int | None, dtype: np.dtype) -> Corpus:
    """The corpus of these files: path, size and time of each. `dtype` is of ids in a `.bin`."""
    first = Path(written[0][0])
    folder, is_text, tokenizer = first.parent / ".mixerlab", first.suffix not in _OF_IDS, None
    stem = hashlib.sha256(repr((written, dtype.str)).encode()).hexdigest()[:16]
    path = first if len(written) == 1 else _made(folder / f"{stem}{first.suffix}", partial(_join, written))
    everything = _mapped(path, dtype if path.suffix == ".bin" else np.dtype("u1"))
    if everything.dtype == np.uint16 and not everything[1:HELD_OUT:2].any():  # the upper halves of small uint32
        raise ValueError(f"task.path={path}: every second id is 0, as if they were uint32: write them as uint16")
    ids = parts = dict(zip(SPLITS, _parts(everything, is_text), strict=True))
    if bpe is not None:
        stem = f"{stem}-bpe-{bpe}"
        tokenizer = _made(folder / f"{stem}.json", partial(_train, parts["train"], bpe))
        files = {split: folder / f"{stem}-{split}.bin" for split in SPLITS}
        ids = {
            split: _mapped(_made(file, partial(_encode, tokenizer, parts[split], dtype)), dtype)
            for split, file in files.items()
        }
    sha256, largest = _digest(ids, folder / f"{stem}.sha256")
    return Corpus(ids, sha256, largest, tokenizer)


def _digest(ids: dict[Split, np.ndarray], kept: Path) -> tuple[str, int]:
    """The SHA-256 and the largest of all ids, as `kept` has them, or it is written."""
    if kept.exists():
        sha256, found = kept.read_text().split()
        return sha256, int(found)
    digest, largest = hashlib.sha256(), 0
    for split, own in ids.items():
        if (least := int(own.min(initial=0))) < 0:
            raise ValueError(f"the ids of the {split} part begin at {least}, not at 0")
        digest.update(f"{split} {own.dtype.str} {len(own)}\n".encode())
        digest.update(own.data)
        largest = max(largest, int(own.max(initial=0)))
    with suppress(OSError):  # a folder that is only read: it is computed each time
        kept.parent.mkdir(exist_ok=True)
        replace_file(kept, f"{digest.hexdigest()} {largest}\n")
    return digest.hexdigest(), largest


def _mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    """The ids in a file, mapped; ValueError unless they are a row of integers."""
    try:
        ids = np.load(path, mmap_mode="r") if path.suffix == ".npy" else np.memmap(path, dtype, "r")
    except Exception as error:
        raise ValueError(f"{path} cannot be mapped ({error}): give another task.path") from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"{path}: has {ids.dtype} of shape {ids.shape}, must be a row of integers")
    return ids


def _parts(everything: np.ndarray, is_text: bool) -> list[np.ndarray]:
    """Train, val and test; text is cut behind the end of a line, if there is one near, or between characters."""
    held = min(len(everything) // _SHARE, HELD_OUT)
    cuts = [len(everything) - 2 * held, len(everything) - held]
    return np.split(everything, [_line_end(everything, cut) for cut in cuts] if is_text else cuts)


def _line_end(text: np.ndarray, at: int) -> int:
    """The first place from `at` on where a line begins; if there is none near, where a character does."""
    near = text[at : at + 2**12]
    for begins in (np.flatnonzero(near == ord("\n")) + 1, np.flatnonzero(near & 0xC0 != 0x80)):  # of UTF-8
        if len(begins):
            return at + int(begins[0])
    return min(at, len(text))


def _made(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, which `make` has written, whole, if it was not there."""
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        part = path.with_name(f"{uuid4().hex}.part")
        try:
            make(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return path


def _join(written: tuple[tuple[str, int, int], ...], path: Path) -> None:
    with path.open("wb") as joined:
        for file, _, _ in written:
            with open(file, "rb") as own:
                shutil.copyfileobj(own, joined)


def _pieces(text: np.ndarray) -> Iterator[str]:
    """The text in pieces of whole lines."""
    start = 0
    while start < len(text):
        stop = _line_end(text, start + _PIECE)
        try:
            yield text[start:stop].tobytes().decode()
        except UnicodeDecodeError as error:  # replaced, such bytes would count as three each
            told = f"task.bpe needs UTF-8, which byte {start + error.start:,} of a split is not"
            raise ValueError(f"{told}: convert the text, or leave task.bpe null") from error
        start = stop


def _train(text: np.ndarray, size: int, path: Path) -> None:
    """Writes the tokenizer of a text: byte-level BPE, as that of GPT-2."""
    library = _tokenizers()
    log.info("training a BPE of %d tokens, kept in %s", size, path.parent)
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_pieces(text[: _line_end(text, _LEARNED)]), trainer)
    if (found := tokenizer.get_vocab_size()) < size:
        raise ValueError(f"task.bpe={size}: the text has no more than {found} tokens")
    tokenizer.save(str(path))


def _encode(tokenizer: Path, text: np.ndarray, dtype: np.dtype, path: Path) -> None:
    own, pieces = _tokenizers().Tokenizer.from_file(str(tokenizer)), _pieces(text)
    log.info("encoding %.1f MB", len(text) / 1e6)
    with path.open("wb") as file:
        while some := list(itertools.islice(pieces, 16)):  # on all cores
            for encoded in own.encode_batch_fast(some):
                file.write(np.array(encoded.ids, dtype).tobytes())


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError("task.bpe needs Hugging Face's tokenizers: pip install 'mixerlab[text]'") from error
    return tokenizers
