"""Damaged and foreign files in a results folder cost their own cell, by name, and nothing else."""

import contextlib
import json
import os
import random
import shutil

import damage
import fakes
import pytest

from mixerlab.records.files import read_metrics, read_run, run_folder
from mixerlab.records.schema import rows_digest
from mixerlab.sweeps.figures import canvas
from mixerlab.sweeps.report import report
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.tables import setting_table
from mixerlab.sweeps.tables.writers import rows_csv, to_csv, to_latex, to_markdown


@pytest.fixture
def results(tmp_path):
    """Two cells: gdn's, which stays as it is, and attn's."""
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], mixer="gdn")
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer="attn")
    return tmp_path


def victim(results):
    return run_folder(results, fakes.run_id(fakes.config(mixer="attn")))


def tables_of(results):
    """All that a report does before it draws: (statuses by run, accuracy by mixer, notes)."""
    frame = collect(results)
    cells = best_per_cell(frame)
    table = setting_table(cells)
    texts = [to_markdown(table), to_csv(table), to_latex(table), rows_csv(frame)]
    assert all(texts)
    accuracies = cells.set_index("mixer")["mean"].dropna().to_dict()
    return frame.groupby("run_id")["status"].agg(set).to_dict(), accuracies, notes_of(spread_out(frame))


@pytest.mark.parametrize("name", damage.RECORDS)
def test_a_damaged_record_costs_its_cell(results, name):
    folder = victim(results)
    damage.RECORDS[name](folder / "record.json")
    check_costs_its_cell(results, folder)


@pytest.mark.parametrize("name", damage.CONFIGS)
def test_a_damaged_config_costs_its_cell(results, name):
    folder = victim(results)
    damage.CONFIGS[name](folder / "config.yaml")
    check_costs_its_cell(results, folder)


def check_costs_its_cell(results, folder):
    statuses, accuracies, notes = tables_of(results)
    assert statuses[folder.name] == {"unreadable"} and accuracies == {"gdn": 0.9}
    (note,) = notes
    assert note.startswith("unreadable: ") and str(folder) in note and "\n" not in note and len(note) < 1000


@pytest.mark.parametrize("name", damage.CONTENTS)
def test_a_record_from_a_stranger_costs_its_cell(results, name):
    """One with digests of its own."""
    folder = victim(results)
    path = folder / "record.json"
    record = json.loads(path.read_text())
    damage.CONTENTS[name](record)
    with contextlib.suppress(KeyError, TypeError):  # what is missing is refused for that
        record["sha256"]["rows"] = rows_digest(record)
    path.write_text(json.dumps(record))
    check_costs_its_cell(results, folder)


@pytest.mark.parametrize("name", damage.METRICS)
def test_damaged_metrics_cost_no_score(results, name):
    folder = victim(results)
    damage.METRICS[name](folder / "metrics.csv")
    statuses, accuracies, notes = tables_of(results)
    assert statuses[folder.name] == {"finished"} and accuracies == {"gdn": 0.9, "attn": 0.8} and not notes


@pytest.mark.parametrize("name", damage.FOREIGN)
def test_what_does_not_belong_is_named_or_ignored(results, tmp_path_factory, name):
    outside = tmp_path_factory.mktemp("outside")
    fakes.add_run(outside, [0.1, 1.0, 0.1], mixer="mesa")
    is_named = damage.FOREIGN[name](results, outside)
    statuses, accuracies, notes = tables_of(results)
    assert accuracies == {"gdn": 0.9, "attn": 0.8}
    assert bool(notes) == is_named and len(statuses) == 2 + is_named


@pytest.mark.slow
def test_a_report_is_drawn_whatever_the_folder_holds(results, tmp_path_factory):
    """One of every kind at once."""
    outside = tmp_path_factory.mktemp("outside")
    fakes.add_run(outside, [0.1, 1.0, 0.1], mixer="mesa")
    for number, (file, damages) in enumerate(
        [("record.json", damage.RECORDS), ("config.yaml", damage.CONFIGS), ("metrics.csv", damage.METRICS)]
    ):
        for place, harm in enumerate(damages.values()):
            run_id = fakes.add_run(results, [0.3, 0.7, 0.5], mixer="mamba", seed=100 * number + place)
            harm(run_folder(results, run_id) / file)
    for name in damage.FOREIGN:
        with_name = tmp_path_factory.mktemp("more")
        damage.FOREIGN[name](results, outside if name != "copy" else with_name)
    made = report.report(results)
    assert "0.900" in made.text and all(file.stat().st_size for file in made.files)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """`content` with one thing changed, as disks, editors and strangers do."""
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
    """Refused in one ValueError, or read as what was written."""
    folder, draw = victim(results), random.Random(file)
    written = {name: (folder / name).read_bytes() for name in ("record.json", "config.yaml", "metrics.csv")}
    record, _ = read_run(results, folder.name)
    metrics = read_metrics(folder)
    refused = 0
    for place in range(number):
        (folder / file).write_bytes(mutated(written[file], draw))
        try:
            found, _ = read_run(results, folder.name)
            assert found["rows"] == record["rows"], place
            assert read_metrics(folder).equals(metrics), place
        except ValueError as error:
            refused += 1
            assert str(folder) in str(error), place
        if place % 40 == 0:
            _, accuracies, _ = tables_of(results)
            assert accuracies["gdn"] == 0.9
    assert refused > number / 2


def test_a_sweep_leaves_a_damaged_record_alone_and_trains_the_others(tmp_path):
    from command_line import TINY, run_py

    grid = ("-m", "mixer=attn", "task=icr", *TINY, "task.seq_len=8,16", f"results_dir={tmp_path}")
    first, second = (line.split()[0] for line in run_py(*grid, "dry_run=true").out.splitlines()[:2])
    damaged = run_folder(tmp_path, first) / "record.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    outcome = run_py(*grid)
    assert outcome.code == 1 and "1 of 2 runs failed" in outcome.err and f"{damaged} is not a record" in outcome.err
    assert damaged.read_text() == "{" and json.loads((run_folder(tmp_path, second) / "record.json").read_text())


def test_nothing_is_written_through_a_link(results, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "precious"
    outside.write_text("precious")
    folder = victim(results)
    for name in ("config.yaml", "metrics.csv", "curves.png"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(outside)
    fakes.write_config(folder, fakes.config(mixer="attn"))
    fakes.write_metrics(folder, fakes.pd.DataFrame({"epoch": [0], "lr": [1e-3]}))
    canvas.save(canvas.Figure(), folder / "curves")
    assert outside.read_text() == "precious"
    assert not any(os.path.islink(folder / name) for name in ("config.yaml", "metrics.csv", "curves.png"))
    shutil.rmtree(folder)
