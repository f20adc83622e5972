"""The tables of MAD, of the challenge and of AdamW are what their records say; the challenge's floor is measured."""

import pytest

from mixerlab.records.archive import restore
from mixerlab.results.adamw import beside_muon
from mixerlab.results.challenge.most_frequent import accuracy
from mixerlab.results.plan import RECALL, RESULTS, lengths
from mixerlab.results.table import facts
from mixerlab.sweeps.report.report import report
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.table_files import to_rows_csv


@pytest.mark.parametrize(
    ("folder", "tables"),
    [
        ("challenge", {"official": ("challenge.md", "solved.md")}),
        ("adamw", {"official": ("settings.md", "solved.md")}),
        (
            "table",
            {"official": ("settings.md", "accuracy.md", "solved.md"), "clean": ("settings.md", "accuracy.md")},
        ),
    ],
)
def test_the_tables_come_from_the_records(tmp_path, folder, tables):
    made = report(RESULTS / folder / "records.tar.xz", tmp_path, selections=list(tables), formats=())
    for selection, names in tables.items():
        for name in names:
            assert (RESULTS / folder / selection / name).read_text() == (made.folder / selection / name).read_text()


def test_the_rows_are_those_of_both_archives(tmp_path):
    for folder in ("table", "challenge"):
        restore(RESULTS / folder / "records.tar.xz", tmp_path)
    assert (RESULTS / "table" / "rows.csv").read_text() == to_rows_csv(collect(tmp_path))


def test_the_facts_of_the_table_come_from_its_rows():
    assert (RESULTS / "table" / "facts.md").read_text() == facts.report()


def test_the_comparison_of_optimizers_comes_from_the_rows_of_both():
    assert (RESULTS / "adamw" / "beside_muon.md").read_text() == beside_muon.report()


LEVELS = [(name, level) for name in RECALL for level in lengths(name)]


@pytest.mark.parametrize(
    ("level", "told"), list(zip(LEVELS, ("0.062", "0.032", "0.018", "0.066", "0.035", "0.019"), strict=True))
)
def test_the_most_frequent_value_scores_what_the_page_says(level, told):
    assert f"{accuracy(*level):.3f}" == told
    assert told in (RESULTS / "challenge" / "README.md").read_text()
