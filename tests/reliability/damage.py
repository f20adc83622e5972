"""Ways to damage the files of a run."""

import os
import shutil
from pathlib import Path

import fakes


def content(text: bytes):
    return lambda path: path.write_bytes(text)


def changed(old: str, new: str):
    return lambda path: path.write_text(path.read_text().replace(old, new, 1))


def folder(path: Path):
    path.unlink()
    path.mkdir()


def cut(path: Path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _other(path: Path) -> Path:
    return next(other for other in path.parents[1].glob("*/metrics.csv") if other.parent != path.parent)


ANY = {
    "empty": content(b""),
    "garbage": content(bytes(range(256)) * 4),
    "folder": folder,
    "cut": cut,
}
RECORDS = ANY | {
    "list": content(b"[]"),
    "a digit": changed("0.8", "0.9"),
}
CONFIGS = ANY | {
    "list": content(b"- 1\n- 2\n"),
    "python object": content(b"!!python/object/apply:os.system ['touch /tmp/harmed']"),
    "missing": lambda path: path.unlink(),
    "another run's": lambda path: fakes.write_config(path.parent, fakes.config(mixer="mesa")),
    "a list as mixer": changed("mixer:\n", "mixer: []\nnothing:\n"),
    "interpolation": changed("d_model: 128", "d_model: ${oc.env:HOME}"),
}
METRICS = ANY | {
    "another run's": lambda path: shutil.copy(_other(path), path),
    "1e308": changed("0.", "1e308"),
}


def _copy(results: Path, outside: Path) -> bool:
    run = next((results / "runs").glob("[0-9a-f]*"))
    shutil.copytree(run, run.with_name("copy"), symlinks=True)
    return True


def _name_in_no_encoding(results: Path, outside: Path) -> bool:
    folder = os.fsencode(results / "runs") + b"/\xff\x1b[1m"
    os.mkdir(folder)
    with open(folder + b"/record.json", "w") as file:
        file.write("{}")
    return True


def _strange_record(results: Path, outside: Path) -> bool:
    strange = results / "runs" / "strange $name$"
    strange.mkdir()
    (strange / "record.json").write_text("{}")
    return True


# Each gives whether a report must name what it leaves.
FOREIGN = {"copy": _copy, "strange record": _strange_record, "name in no encoding": _name_in_no_encoding}
