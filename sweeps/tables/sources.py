"""Where the rows of a report or a comparison come from: a results folder, an archive of records, or a `rows.csv`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from mixerlab.records.archive import restore
from mixerlab.records.named import Configs, read_sweep
from mixerlab.records.schema import LABELS
from mixerlab.sweeps.tables.collect import collect

# Columns of text, also where it looks like a number: a mixer may be called 1e3, and a hash may be 1234e567.
_TEXT = [name for name, kind in LABELS.items() if kind is str]
_TEXT += ["status", "error", "config", "git_commit", "project.git_commit"]
_TEXT += ["code_version.mixer", "code_version.task", "code_version.training"]
_WANTED = ("mixer", "task", "setting", "lr", "seed", "status", "config", "official_accuracy")


def is_rows(source: str | Path) -> bool:
    """Whether the source is the `rows.csv` of a report."""
    return Path(source).suffix == ".csv" and Path(source).is_file()


def has_runs(source: str | Path) -> bool:
    """Whether the source is a results folder with runs, finished or not."""
    return any(Path(source).glob("runs/*/"))


def check_exists(source: str | Path) -> None:
    """`ValueError` if there is no such folder or file."""
    if not Path(source).exists():
        raise ValueError(f"there is no folder or file {source}: name a results folder, an archive or a rows.csv")


def runs_of_sweep(source: str | Path, name: str) -> Configs:
    """The runs of a sweep (`sweeps.records.named.read_sweep`); `ValueError` also for a source that is no folder."""
    check_exists(source)
    if Path(source).is_dir():
        return read_sweep(source, name)
    if is_rows(source):
        raise ValueError(
            f"--sweep {name}: {source} holds no names of sweeps; name the results folder in place of this file, or"
            " choose its runs with --mixer, --task and --where"
        )
    raise ValueError(
        f"--sweep {name}: an archive such as {source} holds no names of sweeps; choose its runs with --mixer, --task"
        " and --where, or unpack it (python -m mixerlab.records.archive FILE --restore) and repeat the sweep's command,"
        " which trains nothing that is finished"
    )


def read_rows(path: str | Path) -> pd.DataFrame:
    """The `rows.csv` of a report as `sweeps.collect.collect` gave it; `ValueError` if it is none."""
    try:
        # Only what is empty is missing: a mixer may be called NA.
        frame = pd.read_csv(
            path, dtype=dict.fromkeys(_TEXT, str), keep_default_na=False, na_values=[""], low_memory=False
        )
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as the rows.csv of a report ({error})") from error
    if missing := [column for column in _WANTED if column not in frame]:
        raise ValueError(f"{path} is no rows.csv of a report: it has no {', '.join(missing)}")
    return frame


@contextmanager
def unpacked(source: str | Path) -> Iterator[Path]:
    """The results folder that a source is or, as long as the context lasts, holds."""
    if not Path(source).is_dir() and Path(source).suffix:
        with tempfile.TemporaryDirectory() as folder:
            restore(source, folder)
            yield Path(folder)
    else:
        yield Path(source)


def rows_of(source: str | Path) -> pd.DataFrame:
    """The rows of `sweeps.collect.collect`, from an archive, a results folder or a report's `rows.csv`.

    Raises:
        ValueError: it is none of them.
    """
    source = Path(source)
    if is_rows(source):
        frame = read_rows(source)
    else:
        with unpacked(source) as folder:
            frame = collect(folder)
    if frame.empty:
        raise ValueError(f"{source} holds no runs: give an archive of records, a results folder or a rows.csv")
    return frame
