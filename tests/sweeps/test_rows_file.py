"""A `rows.csv` that a user has changed: a wrong line is named."""

import fakes
import pytest

from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.rows_file import read_rows
from mixerlab.sweeps.tables.writers import rows_csv

WRONG = {  # column, cell
    "a text as score": ("official_accuracy", "abc"),
    "a number that pandas would leave a text": ("num_params", "1_000"),
    "no rate": ("lr", "fast"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_named(tmp_path, name):
    column, cell = WRONG[name]
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer="attn")
    rows = tmp_path / "rows.csv"
    rows.write_text(rows_csv(collect(tmp_path)))
    assert len(read_rows(rows)) == 3
    head, *lines = rows.read_text().splitlines()
    cells = lines[1].split(",")
    cells[head.split(",").index(column)] = cell
    rows.write_text("\n".join([head, lines[0], ",".join(cells), lines[2]]))
    with pytest.raises(ValueError, match=rf"{rows} cannot be read .*line 3: {column}"):
        read_rows(rows)


def test_a_score_without_its_columns_is_refused(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5])
    rows = tmp_path / "rows.csv"
    rows.write_text(rows_csv(collect(tmp_path).drop(columns="official_accuracy")))
    with pytest.raises(ValueError, match="it has no official_accuracy"):
        read_rows(rows)
