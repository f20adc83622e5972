"""The corpus of `text.py`: files of text or of ids, cut into splits, and what is made of them.

A corpus is memory-mapped: its first part is for training, then comes validation, and test is the end. What takes long
is made once and kept beside the first file, in the folder `.mixerlab`: the digest, several files joined, and with `bpe`
the tokenizer and the ids of each split. A name there says the path, size and time of the files that it was made of.
"""

import hashlib
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

from mixerlab.records.atomic import replace_file
from mixerlab.tasks.base import SPLITS, Split

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


def is_text(file: str) -> bool:
    return Path(file).suffix not in _OF_IDS


def corpus_of(files: Sequence[str], bpe: int | None, dtype: np.dtype) -> Corpus:
    """The corpus of these files, joined. `dtype` is of ids in a `.bin`."""
    written = tuple((os.path.abspath(file), (s := os.stat(file)).st_size, s.st_mtime_ns) for file in files)
    return _corpus(written, bpe, dtype)


@lru_cache(maxsize=8)  # the cells of a sweep share their corpus
def _corpus(written: tuple[tuple[str, int, int], ...], bpe: int | None, dtype: np.dtype) -> Corpus:
    """Of each file its path, size and time."""
    first, tokenizer = Path(written[0][0]), None
    folder = first.parent / ".mixerlab"
    stem = hashlib.sha256(repr((written, dtype.str)).encode()).hexdigest()[:16]
    path = first if len(written) == 1 else _made(folder / f"{stem}{first.suffix}", partial(_join, written))
    everything = _mapped(path, dtype if path.suffix == ".bin" else np.dtype("u1"))
    if everything.dtype == np.uint16 and not everything[1:HELD_OUT:2].any():  # the upper halves of small uint32
        raise ValueError(f"task.path={path}: every second id is 0, as if they were uint32: write them as uint16")
    ids = parts = dict(zip(SPLITS, _parts(everything, is_text(written[0][0])), strict=True))
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


def _parts(everything: np.ndarray, of_text: bool) -> list[np.ndarray]:
    """Train, val and test; text is cut behind the end of a line, if there is one near, or between characters."""
    held = min(len(everything) // _SHARE, HELD_OUT)
    cuts = [len(everything) - 2 * held, len(everything) - held]
    return np.split(everything, [_line_end(everything, cut) for cut in cuts] if of_text else cuts)


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


def pieces_of(text: np.ndarray) -> Iterator[str]:
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
    library = tokenizers_library()
    log.info("training a BPE of %d tokens, kept in %s", size, path.parent)
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(pieces_of(text[: _line_end(text, _LEARNED)]), trainer)
    if (found := tokenizer.get_vocab_size()) < size:
        raise ValueError(f"task.bpe={size}: the text has no more than {found} tokens")
    tokenizer.save(str(path))


def _encode(tokenizer: Path, text: np.ndarray, dtype: np.dtype, path: Path) -> None:
    own, pieces = tokenizers_library().Tokenizer.from_file(str(tokenizer)), pieces_of(text)
    log.info("encoding %.1f MB", len(text) / 1e6)
    with path.open("wb") as file:
        while some := list(itertools.islice(pieces, 16)):  # on all cores
            for encoded in own.encode_batch_fast(some):
                file.write(np.array(encoded.ids, dtype).tobytes())


def tokenizers_library() -> Any:
    """Hugging Face's library; a ValueError without it."""
    try:
        import tokenizers
    except ImportError as error:
        raise ValueError("task.bpe needs Hugging Face's tokenizers: pip install 'mixerlab[text]'") from error
    return tokenizers
