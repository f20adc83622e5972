"""Damaged files in a results folder cost their own cell, by name, and nothing else."""

import os
import random
import shutil
from pathlib import Path

import fakes
import pytest

from mixerlab.records.files import Unreadable, read_metrics, read_run, run_folder
from mixerlab.sweeps.report import report


@pytest.fixture
def results(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], mixer="gdn")
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer="attn")
    return tmp_path


def victim(results):
    return run_folder(results, fakes.run_id(fakes.config(mixer="attn")))


@pytest.fixture
def reported(monkeypatch):
    monkeypatch.setattr(report, "report_figures", lambda *_: ())
    return lambda results: report.report([results], results / "report")


# What is no mutation of a file; those are drawn below.
DAMAGES = {
    "a list": ("record.json", lambda path: path.write_text("[]")),
    "a python object": (
        "config.yaml",
        lambda path: path.write_text("!!python/object/apply:os.system ['touch it']"),
    ),
    "missing": ("config.yaml", Path.unlink),
    "another run's": ("config.yaml", lambda path: fakes.write_config(path.parent, fakes.config(mixer="mesa"))),
    "a folder": ("config.yaml", lambda path: (path.unlink(), path.mkdir())),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_costs_its_cell(results, reported, name):
    file, harm = DAMAGES[name]
    folder = victim(results)
    harm(folder / file)
    with pytest.raises(Unreadable, match=f"^{folder}") as error:
        read_run(folder)
    assert "\n" not in str(error.value)
    text = reported(results)
    assert "0.900" in text and "0.800" not in text, text
    (note,) = {line for line in text.splitlines() if "unreadable: " in line}
    assert str(folder) in note and len(note) < 1000


def test_the_metrics_of_another_run_cost_their_curve(results):
    folder = victim(results)
    (other,) = (path for path in results.glob("runs/*/metrics.csv") if path.parent != folder)
    shutil.copy(other, folder)
    record, _ = read_run(folder)
    assert record.status == "finished"
    with pytest.raises(Unreadable, match=f"^{folder}/metrics.csv"):
        read_metrics(folder)


def test_what_does_not_belong_is_named(results, reported):
    shutil.copytree(victim(results), results / "runs" / "copy")
    os.mkdir(strange := os.fsencode(results / "runs") + b"/\xff\x1b[1m")
    Path(os.fsdecode(strange), "record.json").write_text("{}")
    text = reported(results)
    assert "0.900" in text and "0.800" in text
    assert len({line for line in text.splitlines() if "unreadable: " in line}) == 2


def mutated(content: bytes, draw: random.Random) -> bytes:
    """`content` with one thing changed, as disks and editors do."""
    start = draw.randrange(len(content))
    stop = min(len(content), start + draw.choice((1, 2, 8, 64, 512)))
    middle = draw.choice(
        (
            b"",
            bytes(stop - start),
            draw.randbytes(stop - start),
            content[start:stop] * 2,
            bytes([content[start] ^ 1 << draw.randrange(8)]) + content[start + 1 : stop],
            draw.choice((b"9" * 400, b"-1e308", b"NaN", b"null", b"[[[[", b"{}", b'"', b"\n", b"&a", b"*a", b"${x}")),
        )
    )
    return content[: draw.choice((start, start, start, 0))] + middle + content[stop:]


@pytest.mark.parametrize("number", [60, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", ["record.json", "config.yaml", "metrics.csv"])
def test_no_mutation_of_a_file_is_read_as_something_else(results, file, number):
    folder, draw = victim(results), random.Random(file)
    written = (folder / file).read_bytes()
    record, _ = read_run(folder)
    metrics = read_metrics(folder)
    refused = 0
    for place in range(number):
        (folder / file).write_bytes(mutated(written, draw))
        try:
            found, _ = read_run(folder)
            assert found.rows == record.rows, place
            assert read_metrics(folder).equals(metrics), place
        except Unreadable as error:
            refused += 1
            assert str(folder) in str(error), place
    assert refused > number / 2
