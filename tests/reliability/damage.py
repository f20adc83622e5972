"""Ways to damage the files of a run, by accident or on purpose."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import fakes

from mixerlab.records import files
from mixerlab.records.schema import rows_digest

BOMB = "a0: &a0 [0]\n" + "".join(f"a{i}: &a{i} [*a{i - 1},*a{i - 1}]\n" for i in range(1, 30)) + "mixer: *a29\n"


def content(text: bytes):
    return lambda path: path.write_bytes(text)


def changed(old: str, new: str):
    return lambda path: path.write_text(path.read_text().replace(old, new, 1))


def link_to(target: str):
    def harm(path: Path):
        path.unlink()
        path.symlink_to(target)

    return harm


def pipe(path: Path):
    path.unlink()
    os.mkfifo(path)


def folder(path: Path):
    path.unlink()
    path.mkdir()


def huge(path: Path):
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole


def cut(path: Path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_parameters(path: Path):
    """With digests that fit, as a stranger can compute them."""
    record = files.read_record(path.parent)
    assert record is not None
    for row in record.rows:
        row["num_params"] = 0
    path.write_text(json.dumps(asdict(record) | {"sha256": {"rows": rows_digest(record)}}))


def _other(path: Path) -> Path:
    return next(other for other in path.parents[1].glob("*/metrics.csv") if other.parent != path.parent)


ANY = {
    "empty": content(b""),
    "garbage": content(bytes(range(256)) * 4),
    "link": link_to("/etc/passwd"),
    "link to a device": link_to("/dev/zero"),
    "broken link": link_to("/nowhere/at/all"),
    "pipe": pipe,
    "folder": folder,
    "a terabyte": huge,
    "cut": cut,
}
RECORDS = ANY | {
    "nested lists": content(b"[" * 200_000),
    "list": content(b"[]"),
    "digits": content(b"9" * 5000),
    "a digit": changed("0.8", "0.9"),
    "half a character": changed('"provenance": {', r'"provenance": {"mine": ["\ud800"], '),
    "an escape sequence": changed('"provenance": {', r'"provenance": {"command": "\u001b]0;mine", '),
    "no parameters": without_parameters,
}
CONFIGS = ANY | {
    "alias bomb": content(BOMB.encode()),
    "nested lists": content(b"[" * 50_000),
    "list": content(b"- 1\n- 2\n"),
    "python object": content(b"!!python/object/apply:os.system ['touch /tmp/harmed']"),
    "missing": lambda path: path.unlink(),
    "another run's": lambda path: fakes.write_config(path.parent, fakes.config(mixer="mesa")),
    "a list as mixer": changed("mixer:\n", "mixer: []\nnothing:\n"),
    "many digits": changed("d_model: 128", f"d_model: {'9' * 5000}"),
    "a tag": content(b"a: !!int ''"),
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
