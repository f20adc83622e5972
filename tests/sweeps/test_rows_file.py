"""A damaged or strange `rows.csv` is refused by its name and the first wrong row."""

import fakes
import pytest

from mixerlab.sweeps.report.report import table
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.rows_file import read_rows
from mixerlab.sweeps.tables.writers import rows_csv

# Column and cell, and what the message has.
WRONG = {
    "a text as score": ("official_accuracy", "abc", "abc"),
    "a score above 1": ("official_accuracy", "1.5", "row 2: official_accuracy=1.5"),
    "no score": ("clean_val_accuracy", "", "row 2: clean_val_accuracy"),
    "not finite": ("test_loss", "1e400", "row 2: test_loss=inf"),
    "another status": ("status", "done", "row 2: status='done'"),
    "no direction": ("higher_is_better", "perhaps", "row 2: higher_is_better='perhaps'"),
    "a rate below 0": ("lr", "-1", "row 2: optimizer.lr=-1"),
    "half a seed": ("seed", "0.5", "row 2: seed=0.5"),
    "no mixer": ("mixer", "", "row 2: mixer=None"),
    "what a terminal obeys": ("task", "\x1b[1m", "row 2: it has the text"),
    "no UTF-8": ("setting", "\udcff", "utf-8"),
    "a cell too many": ("config", "a,b", "line 3"),
    "no such column": ("config", None, "no config"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_cell_is_named(tmp_path, name):
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer="attn")
    file, whole = tmp_path / "rows.csv", collect(tmp_path)
    file.write_text(rows_csv(whole))
    assert read_rows(file).equals(whole.astype(read_rows(file).dtypes))
    column, cell, told = WRONG[name]
    lines = [line.split(",") for line in file.read_text().splitlines()]
    place = lines[0].index(column)
    lines[2 if cell is not None else 0][place] = cell or ""
    file.write_bytes("\n".join(map(",".join, lines)).encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError) as caught:
        table(file)
    assert f"{file} cannot be read" in str(caught.value) and told in str(caught.value)
