"""What results/rows.py refuses."""

import pytest

from mixerlab.results.rows import main


@pytest.mark.parametrize(
    ("folder", "path", "message"),
    [
        (".", "other.csv", "there is no list other.csv: results/plan.py writes lists"),
        ("other", "list.csv", "there is no folder other: name a results folder"),
    ],
)
def test_a_list_or_folder_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys, folder, path, message):
    (tmp_path / "list.csv").write_text("unit,overrides\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([folder, "list.csv", path, "rows.csv"])
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {message}")
    assert not (tmp_path / "rows.csv").exists()
