"""Packs finished records into one file, to keep them or to continue a sweep on another machine.

    python -m mixerlab.records.archive FILE             packs the finished runs under results/ into FILE (.tar.xz)
    python -m mixerlab.records.archive FILE --restore   restores those that are missing under results/

An archive holds `runs/<run_id>/config.yaml`, `record.json` and `metrics.csv` of each finished run, and no weights,
checkpoints or names of sweeps: to have `mixerlab report --sweep NAME` after a restore, repeat the sweep's command. The
same records always give the same bytes.
"""

import argparse
import io
import lzma
import re
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

from mixerlab.records import files
from mixerlab.records.atomic import replace_file
from mixerlab.records.claims import claim
from mixerlab.records.errors import message_of
from mixerlab.records.text import counted

FILES = (files.CONFIG_FILE, files.METRICS_FILE, files.RECORD_FILE)  # the record last: with it a run is finished
_MEMBER = re.compile(r"runs/([0-9a-f]{12})/(" + "|".join(map(re.escape, FILES)) + ")")


def pack(results_dir: str | Path, file: str | Path) -> int:
    """Packs the finished runs of `results_dir` into `file`, which is replaced at once; returns their number.

    ValueError if none is finished, or one cannot be read.
    """
    folders = [folder for folder in sorted(Path(results_dir).glob("runs/*/")) if files.is_finished(folder)]
    if not folders:
        raise ValueError(f"results_dir={str(results_dir)!r} has no finished run: train some, or name another folder")
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:xz") as archive:
        for folder in folders:
            _check_run(folder)
            for name in FILES:
                content = (folder / name).read_bytes()
                member = tarfile.TarInfo(f"runs/{folder.name}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    replace_file(Path(file).resolve(), whole.getvalue())
    return len(folders)


def restore(file: str | Path, results_dir: str | Path) -> tuple[int, int]:
    """Puts the runs of an archive into `results_dir`: how many, and how many stay, as they are finished or claimed.

    Nothing is written before all of the archive has been checked.
    """
    restored = 0
    with tempfile.TemporaryDirectory() as unpacked:
        unpack(file, unpacked)
        runs = sorted(Path(unpacked).glob("runs/*"))
        for run in runs:
            try:
                _check_run(run)
            except files.Unreadable as error:
                raise files.Unreadable(str(error).replace(unpacked, str(file))) from error
        files.check_writable(results_dir)
        for run in runs:
            folder = files.run_folder(results_dir, run.name)
            with claim(folder) as ours:
                if ours and not files.is_finished(folder):
                    for name in FILES:
                        replace_file(folder / name, (run / name).read_bytes())
                    restored += 1
    return restored, len(runs) - restored


def unpack(file: str | Path, folder: str | Path) -> None:
    """Writes the files of an archive into an empty folder, for reading alone: what reads a run there checks it."""
    with files.reading(file):
        try:
            with lzma.open(file) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
                for member in archive:
                    match = _MEMBER.fullmatch(member.name)
                    if match is None or not member.isfile():
                        raise ValueError(f"{member.name!r} is no file of a run")
                    path = files.run_folder(folder, match[1]) / match[2]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(cast(IO[bytes], archive.extractfile(member)).read())
        except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
            raise ValueError(f"it is no .tar.xz of records, or it is cut short: {message_of(error)}") from error


def _check_run(folder: Path) -> None:
    """Raises `Unreadable` unless this is the folder of a finished run, with all of `FILES`."""
    with files.reading(folder):
        record, _ = files.read_run(folder)
        if record is None or record.status != "finished" or files.read_metrics(folder) is None:
            raise ValueError(f"it is no finished run, with its {', '.join(FILES)}")


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
