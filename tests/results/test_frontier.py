"""The numbers of results/frontier: its formulas, and that its files come from its records."""

from pathlib import Path

import pytest

from mixerlab.results.frontier.accuracies import above_chance, beyond, main
from mixerlab.sweeps.tables.collect import best_per_cell
from mixerlab.sweeps.tables.lengths import length_table
from mixerlab.sweeps.tables.sources import read_rows
from mixerlab.sweeps.tables.table_files import to_csv

FRONTIER = Path(__file__).parents[2] / "results" / "frontier"


def test_positions_beyond_training_are_what_is_left_of_long_rows():
    # 64 of 128 right, and 128 + 384 positions of which 64 + 96 are right.
    assert beyond(64 / 128, (64 + 96) / 512, 512) == pytest.approx(96 / 384)


def test_positions_known_and_the_others_guessed():
    assert above_chance((32 + 96 / 6) / 128, 1 / 6) == pytest.approx(32)
    assert above_chance(1 / 6, 1 / 6) == 0


@pytest.mark.parametrize("selection", ["clean", "official"])
def test_the_table_of_lengths_is_that_of_the_rows(selection):
    rows = read_rows(FRONTIER / "rows.csv")
    table = length_table(rows, best_per_cell(rows, selection))
    assert to_csv(table) == (FRONTIER / selection / "lengths.csv").read_text()


def test_the_accuracies_are_those_of_the_records(tmp_path):
    main(str(FRONTIER / "frontier.tar.xz"), str(tmp_path / "accuracies.md"))
    assert (tmp_path / "accuracies.md").read_text() == (FRONTIER / "accuracies.md").read_text()
