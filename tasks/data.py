"""The datasets of a run: generated from one data seed, or read from mad-lab's cached files.

A cached dataset is `DIR/<folder>/{train,test}/{inputs,targets}.npy`, int64, where `dataset_folder` spells the folder as
mad-lab does. mad-lab has no validation split: ours is generated from our own val stream, unless the folder has a `val/`
beside the others. Test rows of another length than the others (`task.test_seq_len`) are always generated.

Of a tiny vocabulary and length, rows are in several splits by chance. Splits that begin alike are refused, unless
`task.allow_shared_rows` allows it. What was read is part of a run's identity, by its digest.
"""

import hashlib
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from mixerlab.tasks.base import SPLITS, Split, Task, TaskRuleError
from mixerlab.tasks.generated import Arrays, WrongRows, make_split

_FEW_ROWS = 16  # so few different rows say nothing

# mad-lab's field names in a dataset's folder, in order: (short name, attribute of the task, unused value).
_FOLDER_FIELDS = (
    ("vs", "vocab_size", None),
    ("sl", "seq_len", None),
    ("ntr", "num_train_examples", None),
    ("nte", "num_test_examples", None),
    ("km", "k_motif_size", 1),
    ("vm", "v_motif_size", 1),
    ("mq", "multi_query", 1),
    ("fn", "frac_noise", 0.0),
    ("nvs", "noise_vocab_size", 0),
    ("ntc", "num_tokens_to_copy", 0),
    ("s", "data_seed", None),
)


def load_or_generate(
    task: Task, data_dir: str | Path | None = None, allow_shared_rows: bool = False
) -> dict[str, Arrays]:
    """All three splits: read from `data_dir` if one is given (see the module's text), else the task's own or generated.

    Raises:
        ValueError: the folder lacks this task's dataset, or a file is not as it should be.
        WrongRows: as `make_split`; or one split repeats another and `allow_shared_rows` is False.
    """
    if data_dir is None:
        if (own := task.splits()) is not None:
            return {split: own[split] for split in SPLITS}
        data: dict[str, Arrays] = {split: make_split(task, split) for split in SPLITS}
    else:
        folder = find_dataset(task, Path(data_dir))
        data = _read_dataset(task, folder)
        for split in SPLITS:
            try:
                task.for_split(split).check(*data[split], split)
            except TaskRuleError as error:
                row = "" if error.row is None else f"row {error.row}: "
                raise ValueError(f"{folder / split / error.array}.npy: {row}{error.rule}") from error
    for other, split in combinations(SPLITS, 2):
        if not allow_shared_rows and _begin_alike(data[split][0], data[other][0]):
            raise WrongRows(
                f"{split} rows begin as those of {other}: {split} would not measure what is new to the model. Give"
                " other rows (generate_rows gets another `rng` for each split), or allow it with"
                " task.allow_shared_rows=true"
            )
    return data


def _begin_alike(rows: np.ndarray, others: np.ndarray) -> bool:
    """Whether one begins with all rows of the other, and these are no handful."""
    both = min(len(rows), len(others))
    return np.array_equal(rows[:both], others[:both]) and len({row.tobytes() for row in rows[:both]}) >= _FEW_ROWS


def dataset_digest(data: Mapping[str, Arrays]) -> str:
    """SHA-256 of the arrays of all splits, 64 hex digits."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for array in data[split]:
            digest.update(f"{split} {array.dtype.str} {array.shape}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def digest_of_files(task: Task, data_dir: str | Path | None) -> str | None:
    """A digest of what `load_or_generate` would read from files now, without checking rows; None if it reads none.

    Raises:
        ValueError: the folder lacks this task's dataset, or a file cannot be read.
    """
    if data_dir is None:
        return task.digest
    folder = find_dataset(task, Path(data_dir))
    files = sorted(folder.glob("*/*.npy"))
    written = tuple((path.name, path.parent.name, path.stat().st_mtime_ns, path.stat().st_size) for path in files)
    key = type(task), repr(sorted(vars(task).items())), folder.resolve(), written
    if key not in _digests:
        _digests[key] = dataset_digest(_read_dataset(task, folder))
    return _digests[key]


_digests: dict[tuple, str] = {}  # of this process: the cells of a sweep share their datasets


def _read_dataset(task: Task, folder: Path) -> dict[str, Arrays]:
    """The splits of a folder, of which only the shape is checked; val is generated if the folder has none.

    So are test rows of another length.
    """
    generated = {"val": not (folder / "val").exists(), "test": task.test_seq_len is not None}
    return {
        split: make_split(task, split) if generated.get(split) else _read_split(task, folder, split) for split in SPLITS
    }


def dataset_folder(task: Task) -> str:
    """mad-lab's name of the task's dataset, e.g. `t-CR_vs-16_sl-128_ntr-12800_nte-1280_km-1_vm-1_...`.

    Raises ValueError for a task that mad-lab has no name for.
    """
    if task.madlab_code is None:
        raise ValueError(
            f"{type(task).__name__} has no madlab_code, the task's short name in mad-lab's folder names, without which"
            " task.data_dir does not work: set it on the class"
        )
    fields = (f"{short}-{getattr(task, name, unused)}" for short, name, unused in _FOLDER_FIELDS)
    return "_".join([f"t-{task.madlab_code}", *fields]).replace(".", "#")


def find_dataset(task: Task, data_dir: Path) -> Path:
    """The task's dataset folder in `data_dir`; a ValueError that says what is there instead."""
    folder = data_dir / dataset_folder(task)
    if folder.is_dir():
        return folder
    if not data_dir.is_dir():
        raise ValueError(f"task.data_dir={data_dir}: no such folder")
    found = ", ".join(sorted(path.name for path in data_dir.glob(f"t-{task.madlab_code}_*"))) or "none of this task"
    raise ValueError(f"task.data_dir={data_dir}: the folder {folder.name} is missing; there are: {found}")


def _read_split(task: Task, folder: Path, split: Split) -> Arrays:
    """The arrays of one split, of which only the shape is checked."""
    expected = (task.num_examples(split), task.input_length)
    arrays = []
    for name in ("inputs", "targets"):
        path = folder / split / f"{name}.npy"
        try:
            array = np.load(path, allow_pickle=False)
            shape = array.shape  # an archive of several arrays has none
        except Exception as error:  # numpy reads the header as Python tokens, and fails in any way
            raise ValueError(f"{path}: not a readable .npy file ({error})") from error
        if shape != expected:
            raise ValueError(f"{path}: shape is {shape}, the folder's name and the task say {expected}")
        arrays.append(array)
    return arrays[0], arrays[1]
