"""The intervals that the pages of results/ state are in the tables that `results/remake.py` makes."""

import re

import pytest
from command_line import ROOT

INTERVAL = re.compile(r"([-+]?\d+(?:\.\d+)?) ± (\d+(?:\.\d+)?)")
PAGES = sorted((ROOT / "results").rglob("README.md"))


def tables_and_prose(text: str) -> tuple[str, str]:
    lines = text.splitlines()
    tables = [line for line in lines if line.startswith("|")]
    return "\n".join(tables), " ".join(line.strip() for line in lines if line not in tables)


def rounds_to(stated: str, made: str) -> bool:
    """But for the sign, which the words around a number may say."""
    step = 10 ** -len(stated.partition(".")[2])
    return abs(abs(float(stated)) - abs(float(made))) <= 0.51 * step


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_the_intervals_of_a_page_are_in_tables(page):
    """Those of its folder; the overview has tables of its own hand."""
    files = [file for file in page.parent.rglob("*.md") if file != ROOT / "results" / "README.md"]
    made = [pair for file in files for pair in INTERVAL.findall(tables_and_prose(file.read_text())[0])]
    prose = page.read_text() if page.parent.name == "results" else tables_and_prose(page.read_text())[1]
    for stated in INTERVAL.findall(re.sub(r"\s+", " ", prose)):
        assert any(all(map(rounds_to, stated, pair)) for pair in made), " ± ".join(stated)
