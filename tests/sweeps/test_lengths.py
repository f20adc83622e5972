"""Accuracy on test rows of other lengths than those of training: what a sweep like `experiment=frontier` leaves."""

import csv
import re

import fakes
import numpy as np
import pytest

from mixerlab.records.names import other_test_length
from mixerlab.sweeps.figures.axis import difficulty, lengths
from mixerlab.sweeps.figures.canvas import ONE_COLUMN, TWO_COLUMNS
from mixerlab.sweeps.figures.table import heat_map
from mixerlab.sweeps.report import report as reports
from mixerlab.sweeps.report.page import Part, page
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.lengths import at_length_of_training, length_table
from mixerlab.sweeps.tables.tables import setting_table


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    fakes.add_frontier(folder, ("attn", "attn+gdn"))
    return folder


@pytest.fixture(scope="module")
def frame(results):
    return collect(results)


def test_which_settings_have_other_test_rows():
    expected = {
        "baseline": None,
        "S3-128": None,
        "seq_len-256": None,
        "test_seq_len=512": ("baseline", 512),
        "S3-128,test_seq_len=64": ("S3-128", 64),
        "num_train_examples=100000,test_seq_len=256": ("num_train_examples=100000", 256),
        "test_seq_len=512, data_seed=2": ("baseline, data_seed=2", 512),
    }
    assert {setting: other_test_length(setting) for setting in expected} == expected


def test_the_table_has_a_row_for_each_length_in_the_order_of_numbers(frame):
    table = length_table(frame, best_per_cell(frame))
    assert table.labels == ("task", "setting", "trained at", "tested at")
    assert [name[2:] for name in table.rows] == [("128", length) for length in ("64", "128", "256", "1024")] * 2
    assert [name[:2] for name in table.rows][::4] == [
        ("icr", "num_train_examples=100000"),
        ("state_tracking", "S3-128"),
    ]
    accuracies = [row["attn"].mean for row in table.rows.values()]
    assert accuracies == pytest.approx([0.95, 0.9, 0.85, 0.8] * 2)
    assert len(table.rows["icr", "num_train_examples=100000", "128", "1024"]["attn+gdn"].by_seed) == 3


def test_the_page_has_the_records_behind_each_length(frame):
    cells = best_per_cell(frame, "clean")
    part = Part("clean", "", "", {"lengths": length_table(frame, cells)}, cells, cells, [])
    (table, *_) = re.findall(r"<h3>By length</h3>.*", page("Report", [part], frame), re.DOTALL)
    assert table.count("<details>") == 2 * 2 * 4 and table.count('<tr class="chosen">') == 2 * 2 * 4 * 3
    assert "S3-128,test_seq_len=1024</td>" in table


def test_no_table_without_other_lengths(frame):
    cells = at_length_of_training(best_per_cell(frame))
    assert sorted(set(cells["setting"])) == ["S3-128", "num_train_examples=100000"]
    assert length_table(frame, cells) is None and lengths(frame, cells, "clean") is None


def test_only_other_lengths_are_a_table_too(frame):
    other = frame[frame["setting"].map(other_test_length).notna()]
    cells = best_per_cell(other)
    assert len(at_length_of_training(cells)) == len(cells)
    assert [name[2:] for name in length_table(other, cells).rows][:3] == [("128", n) for n in ("64", "256", "1024")]


def test_a_length_that_no_record_tells_is_unknown(frame):
    table = length_table(frame.drop(columns="task.seq_len"), best_per_cell(frame))
    assert {name[2] for name in table.rows} == {"?"}


def test_the_figure_has_chance_seeds_and_the_length_of_training(frame):
    figure = lengths(frame, best_per_cell(frame, "clean"), "clean")
    icr, state_tracking = figure.axes
    assert [panel.get_title() for panel in figure.axes] == ["icr 100k training examples", "state_tracking S3-128"]
    assert icr.get_xlabel() == "test length (trained at 128)"
    assert [label.get_text() for label in icr.get_xticklabels()] == ["64", "128", "256", "1024"]
    (chance,) = [line for line in state_tracking.lines if line.get_label() == "_chance"]
    assert set(chance.get_ydata()) == {1 / 6}
    assert [np.isfinite(line.get_ydata()).sum() for line in icr.lines if line.get_label() == "_interval"] == [2 * 4] * 2
    (_, under, *_) = figure.texts
    assert under.get_text().replace("\n", " ") == (
        "lengths in tokens; learning rate and checkpoint chosen on validation, which has the length of training;"
        " mixers side by side where error bars would overlap;"
        " error bars: 95% Student t intervals over seeds, cut to [0, 1]"
    )


@pytest.mark.parametrize("layout", [ONE_COLUMN, TWO_COLUMNS])
def test_rows_of_the_heat_map_keep_their_lengths(frame, layout):
    (panel,) = heat_map(setting_table(best_per_cell(frame)), "clean", layout).axes
    labels = [label.get_text() for label in panel.get_yticklabels()]
    assert any("\n" in label for label in labels) == (layout == ONE_COLUMN)
    labels = [label.replace("\n", " ") for label in labels]
    assert all(label.startswith("icr 100k training examples") for label in labels[:4])
    assert [label.rpartition(", ")[2] for label in labels[1:4]] == [f"tested at {n}" for n in (64, 256, 1024)]
    assert labels[-1] == "state_tracking S3-128, tested at 1024"


def test_a_key_of_one_value_is_no_axis(frame):
    """All runs on icr have 100000 training examples: there is nothing to compare that with."""
    assert [panel.get_xlabel() for panel in difficulty(frame, best_per_cell(frame), "official").axes] == [
        "test length (trained at 128)"
    ] * 2


def test_a_report_means_over_no_lengths_and_draws_them_for_each_selection(results, tmp_path, monkeypatch):
    monkeypatch.setattr(reports.canvas, "save", lambda figure, stem, *_: [stem.with_suffix(".png")])
    made = reports.report(results, tmp_path / "report")
    assert "| icr            | **0.900" in made.text.split("## lengths")[0]
    assert "cells tested at another length than they trained at are left out of the means" in made.text.lower()
    written = {path.relative_to(made.folder).as_posix() for path in made.files}
    both = {
        f"{selection}/lengths.{kind}" for selection in ("official", "clean") for kind in ("md", "csv", "tex", "png")
    }
    assert both <= written and "clean/settings.png" not in written
    with (made.folder / "clean" / "lengths_intervals.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["tested at"] for row in rows if row["mixer"] == "attn" and row["task"] == "icr"] == [
        "64",
        "128",
        "256",
        "1024",
    ]
    assert all(float(row["low"]) < float(row["mean"]) < float(row["high"]) for row in rows)
