"""Packs finished records into one file, to keep them or to continue a sweep on another machine.

    python -m mixerlab.records.archive FILE             packs the finished runs under results/ into FILE (.tar.xz)
    python -m mixerlab.records.archive FILE --restore   restores those that are missing under results/

An archive holds `runs/<run_id>/config.yaml`, `record.json` and `metrics.csv` of each finished run, and nothing else: no
weights, no checkpoints, no names of sweeps (`sweeps/`): to have `mixerlab report --sweep NAME` after a restore, repeat
the sweep's command, which finds its runs finished and notes them under its name. The same records always give the same
bytes. A FILE that holds runs which the results folder lacks is only replaced with --force.
"""

import argparse
import io
import lzma
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mixerlab.records.atomic import read_bytes, replace_file
from mixerlab.records.claims import claim
from mixerlab.records.files import (
    CONFIG_FILE,
    LARGEST_METRICS,
    METRICS_FILE,
    RECORD_FILE,
    check_writable,
    has_rows_of,
    is_finished,
    is_written_with,
    parse_config,
    parse_record,
    run_folder,
)
from mixerlab.records.text import counted

_XZ = b"\xfd7zXZ\x00"  # how such a file begins
FILES = (CONFIG_FILE, METRICS_FILE, RECORD_FILE)  # the record last: with it a run is finished
_MEMBER = re.compile(r"runs/([0-9a-f]{12})/(" + "|".join(map(re.escape, FILES)) + ")")


def pack(results_dir: str | Path, file: str | Path) -> int:
    """Packs the finished runs of `results_dir` into `file`, which is replaced at once; gives their number.

    It replaces whatever was there: `check_keeps` says whether runs would be lost.

    Raises:
        ValueError: no run is finished, a record that cannot be read, a finished run whose files are not all there or
            not of one run.
        OSError: `file` cannot be written; an earlier one is as it was.
    """
    folders = _finished(results_dir)
    if not folders:
        raise ValueError(f"results_dir={str(results_dir)!r} has no finished run: train some, or name another folder")
    content = io.BytesIO()
    with lzma.open(content, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for folder in folders:
            for name, text in _contents(folder).items():
                member = tarfile.TarInfo(f"runs/{folder.name}/{name}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    replace_file(Path(file), content.getvalue())
    return len(folders)


def check_keeps(file: str | Path, results_dir: str | Path) -> None:
    """`ValueError` if `file` is there and replacing it with the finished runs of `results_dir` would lose a run.

    Only the names in the archive are read, not the records. An empty file has nothing to lose.
    """
    file = Path(file)
    if not file.is_file() or not file.stat().st_size:
        return
    try:
        with _reading(file):
            held = {_member_of(name)[0] for name, _ in _members(file)}
    except ValueError as error:
        raise ValueError(f"{error}; to replace it add --force") from error
    lost = len(held - {folder.name for folder in _finished(results_dir)})
    if lost:
        raise ValueError(
            f"{file} holds {counted(lost, 'finished run')} that results_dir={str(results_dir)!r} has not: to unpack it"
            " add --restore; to replace it --force"
        )


def _finished(results_dir: str | Path) -> list[Path]:
    return [folder for folder in sorted(Path(results_dir).glob("runs/*/")) if is_finished(folder)]


def _contents(folder: Path) -> dict[str, bytes]:
    """The files of a finished run by name; `ValueError` if `restore` would refuse them."""
    contents = {}
    for path in (folder / name for name in FILES):
        try:
            contents[path.name] = read_bytes(path, LARGEST_METRICS)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"{path} cannot be read ({reason}): delete its run's folder to train it anew") from error
    try:
        _check_run(folder.name, contents)
    except ValueError as error:
        raise ValueError(f"{folder} is no whole run ({error}): delete it to train it anew") from error
    return contents


def restore(file: str | Path, results_dir: str | Path) -> tuple[int, int]:
    """Puts the runs of an archive into `results_dir`: how many, and how many were finished there already.

    A run that is finished there stays as it is, and so does one that a process has claimed. Nothing is written before
    all of the archive has been checked.

    Raises:
        ValueError: the file is no such archive, or a folder of a run leads out of `results_dir`.
    """
    runs = _checked(file)
    check_writable(results_dir)
    for identity in runs:
        folder = run_folder(results_dir, identity)
        if not folder.resolve().is_relative_to(Path(results_dir).resolve()):
            raise ValueError(f"{folder} leads out of results_dir={str(results_dir)!r}: remove that link")
    restored = 0
    for identity, contents in runs.items():
        folder = run_folder(results_dir, identity)
        with claim(folder) as ours:
            if not ours or is_finished(folder):
                continue
            for name in FILES:
                replace_file(folder / name, contents[name])
            restored += 1
    return restored, len(runs) - restored


def _checked(file: str | Path) -> dict[str, dict[str, bytes]]:
    """The files of each run of an archive, by run_id and name; `ValueError` where it is not what `pack` writes."""
    runs: dict[str, dict[str, bytes]] = {}
    with _reading(file):
        for name, content in _members(file):
            identity, part = _member_of(name)
            if runs.setdefault(identity, {}).setdefault(part, content) is not content:
                raise ValueError(f"{name!r} is there twice")
        for identity, contents in runs.items():
            if missing := [name for name in FILES if name not in contents]:
                raise ValueError(f"runs/{identity} has no {', '.join(missing)}")
            _check_run(identity, contents)
    return runs


@contextmanager
def _reading(file: str | Path) -> Iterator[None]:
    """`ValueError`, which names the file, for whatever is wrong with it."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"{file} cannot be read ({error.strerror or error}): give an archive") from error
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError) as error:
        if isinstance(error, EOFError) and Path(file).read_bytes().startswith(_XZ):
            raise ValueError(f"{file} is not complete: copy it again") from error
        raise ValueError(
            f"{file} is no archive of records ({error}): make one with python -m mixerlab.records.archive"
        ) from error


def _member_of(name: str) -> tuple[str, str]:
    """The run_id and the file that a member is of; `ValueError` for a name that `pack` does not give."""
    match = _MEMBER.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no file of a run")
    return match[1], match[2]


def _members(file: str | Path) -> Iterator[tuple[str, bytes]]:
    with lzma.open(file) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
        for member in archive:
            if not member.isfile():
                raise ValueError(f"{member.name!r} is no plain file")
            if member.size > LARGEST_METRICS:
                raise ValueError(f"{member.name!r} has {member.size:,} bytes, more than any file of a run")
            content = archive.extractfile(member)
            assert content is not None  # as for every plain file
            yield member.name, content.read()


def _check_run(identity: str, contents: Mapping[str, bytes]) -> None:
    """`ValueError` unless these files, by name, are of the finished run `identity`, and belong together."""
    record = parse_record(contents[RECORD_FILE])
    if record["run_id"] != identity or record["status"] != "finished":
        raise ValueError(f"runs/{identity} holds the record of {record['run_id']}, {record['status']}")
    try:
        config = parse_config(contents[CONFIG_FILE], identity)
    except ValueError as error:
        raise ValueError(f"runs/{identity}/{CONFIG_FILE} is not its config: {error}") from error
    if not has_rows_of(record, config):
        raise ValueError(f"runs/{identity}/{RECORD_FILE} has other rows than its {CONFIG_FILE} describes")
    if not is_written_with(contents[METRICS_FILE], contents[RECORD_FILE]):
        raise ValueError(f"runs/{identity}/{METRICS_FILE} is not the file that was written with the record")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.records.archive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="the archive")
    parser.add_argument("--results-dir", default="results", help="the results folder (default: results)")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--restore", action="store_true", help="unpack the archive into the results folder")
    either.add_argument("--force", action="store_true", help="replace FILE even if it holds runs that would be lost")
    given = parser.parse_args(arguments)
    if not given.restore and not given.file.endswith(".tar.xz"):
        parser.error(f"{given.file}: an archive is compressed by xz, so name it FILE.tar.xz")
    try:
        if given.restore:
            restored, there = restore(given.file, given.results_dir)
            print(f"{counted(restored, 'run')} restored to {given.results_dir}, {there} left as they were")
        else:
            if not given.force:
                check_keeps(given.file, given.results_dir)
            number = pack(given.results_dir, given.file)
            size = Path(given.file).stat().st_size / 1e6
            print(f"{counted(number, 'finished run')} packed, {size:.2f} MB: {given.file}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
