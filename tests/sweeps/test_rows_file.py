"""A damaged or strange `rows.csv`: a wrong line costs its row and is named; what is right stays as it was."""

import fakes
import pytest

from mixerlab.sweeps.report import compare
from mixerlab.sweeps.report.report import table
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.notes import unreadable
from mixerlab.sweeps.tables.published import Name, Published
from mixerlab.sweeps.tables.rows_file import read_rows
from mixerlab.sweeps.tables.writers import rows_csv

# Column and cell, and whether the row's labels stay, so that its cell is known to lack it.
WRONG = {
    "a text as score": ("official_accuracy", "abc", True),
    "a score above 1": ("official_accuracy", "1.5", True),
    "no score": ("clean_val_accuracy", "", True),
    "a number that pandas would leave a text": ("num_params", "1_000", True),
    "not finite": ("test_loss", "1e400", True),
    "another status": ("status", "done", True),
    "no direction": ("higher_is_better", "perhaps", True),
    "a rate below 0": ("lr", "-1", False),
    "half a seed": ("seed", "0.5", False),
    "no mixer": ("mixer", "", False),
    "what a terminal obeys": ("task", "\x1b[1m", False),
    "no UTF-8": ("setting", "\udcff", False),
    "a cell too many": ("config", "a,b", False),
}


@pytest.fixture
def rows(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer="attn")
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], mixer="gdn")
    frame = collect(tmp_path)
    frame = frame.sort_values("mixer", kind="stable", ignore_index=True)
    (tmp_path / "rows.csv").write_text(rows_csv(frame))
    return tmp_path / "rows.csv"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_costs_its_row_and_is_named(rows, name):
    column, cell, keeps_labels = WRONG[name]
    whole = read_rows(rows)
    head, *lines = rows.read_text().splitlines()
    cells = lines[1].split(",")  # attn at the rate that is best
    cells[head.split(",").index(column)] = cell
    text = "\n".join([head, lines[0], ",".join(cells), *lines[2:]])
    rows.write_bytes(text.encode("utf-8", "surrogateescape"))
    frame = read_rows(rows)
    (error,) = unreadable(frame)
    assert f"{rows}, line 3: " in error and error.isprintable()
    assert frame.drop(1)[whole.columns].equals(whole.drop(1).astype(frame.dtypes))
    assert (frame["mixer"][1] == "attn") == keeps_labels
    found = table(rows)
    assert found.loc["icr", "attn"].startswith("0.500") and found.loc["icr", "gdn"].startswith("0.900")
    assert found.loc["icr", "attn"].endswith("*") == keeps_labels and error in found.attrs["notes"]


def test_a_comparison_names_such_a_line(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "save", lambda *_: [])
    paper = Published("a paper", "", "", "", (), {(Name("icr", "baseline"), "gdn"): [1.0]}, {})
    rows.write_text(rows.read_text().replace("0.8,", "8,"))
    text = compare.compare([rows], tmp_path / "out", {"paper": paper})
    assert "| 0.900 | 1.000 |" in text and f"- unreadable: {rows}, line 3: " in text
