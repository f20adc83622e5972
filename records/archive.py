"""Packs finished records into one file, to keep them or to continue a sweep on another machine.

    python -m mixerlab.records.archive FILE             packs the finished runs under results/ into FILE (.tar.xz)
    python -m mixerlab.records.archive FILE --restore   restores those that are missing under results/

An archive holds `runs/<run_id>/config.yaml`, `record.json` and `metrics.csv` of each finished run, and nothing else: no
weights, no checkpoints, no names of sweeps (`sweeps/`): to have `mixerlab report --sweep NAME` after a restore, repeat
the sweep's command, which finds its runs finished and notes them under its name. The same records always give the same
bytes. A FILE that is there is only replaced with --force.
"""

import argparse
import io
import lzma
import re
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mixerlab.records.atomic import replace_file
from mixerlab.records.claims import claim
from mixerlab.records.errors import message_of
from mixerlab.records.files import (
    CONFIG_FILE,
    METRICS_FILE,
    RECORD_FILE,
    check_metrics,
    check_same_rows,
    check_writable,
    is_finished,
    parse_config,
    parse_record,
    reading,
    run_folder,
)
from mixerlab.records.text import counted

FILES = (CONFIG_FILE, METRICS_FILE, RECORD_FILE)  # the record last: with it a run is finished
_MEMBER = re.compile(r"runs/([0-9a-f]{12})/(" + "|".join(map(re.escape, FILES)) + ")")


def pack(results_dir: str | Path, file: str | Path) -> int:
    """Packs the finished runs of `results_dir` into `file`, which is replaced at once; returns their number.

    Raises:
        ValueError: no run is finished, or one cannot be read, which is named.
        OSError: `file` cannot be written; an earlier one is as it was.
    """
    folders = [folder for folder in sorted(Path(results_dir).glob("runs/*/")) if is_finished(folder)]
    if not folders:
        raise ValueError(f"results_dir={str(results_dir)!r} has no finished run: train some, or name another folder")
    content = io.BytesIO()
    with lzma.open(content, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for folder in folders:
            with reading(folder):
                contents = {name: (folder / name).read_bytes() for name in FILES}
                _check_run(folder.name, contents)
            for name, text in contents.items():
                member = tarfile.TarInfo(f"runs/{folder.name}/{name}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    replace_file(Path(file).resolve(), content.getvalue())
    return len(folders)


def restore(file: str | Path, results_dir: str | Path) -> tuple[int, int]:
    """Puts the runs of an archive into `results_dir`: how many, and how many were finished there already.

    A run that is finished there stays as it is, and so does one that a process has claimed. Nothing is written before
    all of the archive has been checked.

    Raises:
        ValueError: the file is no such archive.
    """
    with reading(file):
        runs = _members(file)
        for identity, contents in runs.items():
            with reading(f"{file}: runs/{identity}"):
                _check_run(identity, contents)
    check_writable(results_dir)
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


def unpack(file: str | Path, folder: str | Path) -> None:
    """Writes the files of an archive into an empty folder, for reading alone: what reads a run there checks it.

    Raises:
        ValueError: the file is no archive of runs.
    """
    with reading(file):
        runs = _members(file)
    for identity, contents in runs.items():
        run = run_folder(folder, identity)
        run.mkdir(parents=True)
        for name, content in contents.items():
            (run / name).write_bytes(content)


def _members(file: str | Path) -> dict[str, dict[str, bytes]]:
    """The files of each run of an archive, by run_id and name; raises where it holds anything else."""
    runs: dict[str, dict[str, bytes]] = {}
    try:
        with lzma.open(file) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
            for member in archive:
                match = _MEMBER.fullmatch(member.name)
                if match is None or not member.isfile():
                    raise ValueError(f"{member.name!r} is no file of a run")
                content = archive.extractfile(member)
                assert content is not None  # as for every plain file
                runs.setdefault(match[1], {})[match[2]] = content.read()
    except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
        raise ValueError(f"it is no .tar.xz of records, or it is cut short: {message_of(error)}") from error
    return runs


def _check_run(identity: str, contents: Mapping[str, bytes]) -> None:
    """Raises unless these files, by name, are all of the finished run `identity`."""
    if missing := [name for name in FILES if name not in contents]:
        raise ValueError(f"it has no {', '.join(missing)}")
    record = parse_record(contents[RECORD_FILE], identity)
    if record.status != "finished":
        raise ValueError(f"it has {record.status}")
    check_same_rows(record, parse_config(contents[CONFIG_FILE], identity))
    check_metrics(contents[METRICS_FILE], contents[RECORD_FILE])


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
    either.add_argument("--force", action="store_true", help="replace FILE")
    args = parser.parse_args(arguments)
    if not args.restore and not args.file.endswith(".tar.xz"):
        parser.error(f"{args.file}: an archive is compressed by xz, so name it FILE.tar.xz")
    try:
        if args.restore:
            restored, there = restore(args.file, args.results_dir)
            print(f"{counted(restored, 'run')} restored to {args.results_dir}, {there} left as they were")
        else:
            if Path(args.file).exists() and not args.force:
                raise ValueError(f"{args.file} is there: to unpack it add --restore; to replace it --force")
            number = pack(args.results_dir, args.file)
            size = Path(args.file).stat().st_size / 1e6
            print(f"{counted(number, 'finished run')} packed, {size:.2f} MB: {args.file}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
