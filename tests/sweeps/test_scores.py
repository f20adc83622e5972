"""Scores of which less is better, beside accuracies: no table averages both, and figures show each by itself."""

import fakes
import pytest
from figure_texts import assert_legible

from mixerlab.records.schema import Score
from mixerlab.sweeps.figures import report_figures
from mixerlab.sweeps.figures.by_task import by_task
from mixerlab.sweeps.figures.heat_map import heat_map
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.report.report import tables_of
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect, rows_of
from mixerlab.sweeps.tables.swept import only_where, spread_out
from mixerlab.sweeps.tables.tables import text_of
from mixerlab.sweeps.tables.writers import rows_csv, solved_markdown, to_csv, to_markdown

BITS = Score("bits_per_byte", higher_is_better=False)
TEXT = {"attn": ([1.3, 1.2, 1.25], [1.32, 1.21, 1.26]), "gdn": ([1.5, 1.4, "diverged"], [1.52, 1.39, 1.6])}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two tasks in bits per byte and one in accuracy."""
    folder = tmp_path_factory.mktemp("results")
    for mixer, by_seed in TEXT.items():
        for task, more in (("prose", 0.0), ("code", 0.5)):
            scores = [score if score == "diverged" else score + more for own in by_seed for score in own]
            fakes.add_run(folder, scores, score=BITS, mixer=mixer, task=task, seed=[0, 1])
        fakes.add_run(folder, [0.3, 0.9, 0.5], mixer=mixer)
    return folder


def test_a_table_for_each_score_with_a_mean_of_its_own(results, tmp_path):
    frame = fakes.frame_of(results)
    cells = best_per_cell(frame)
    tables, _ = tables_of(frame, cells)
    assert list(tables) == ["accuracy", "bits_per_byte", "settings"] and list(tables["accuracy"].frame.index) == ["icr"]
    means = {name: [text_of(entry, 2) for entry in row] for name, row in tables["bits_per_byte"].frame.iterrows()}
    assert list(means) == ["code", "prose", "Avg"]
    assert means["prose"] == ["1.205 ± 0.064", "1.395 ± 0.064"] and means["Avg"][0] == "1.455 ± 0.064"
    assert [column.mixer for column, best in tables["bits_per_byte"].best.items() if best.any()] == ["attn"]
    assert "code, prose: bits per byte, the lower the better" in to_markdown(tables["settings"])
    assert "best at" not in to_markdown(tables["bits_per_byte"])  # the rate in the middle is
    assert "prose" not in solved_markdown(cells, cells)
    (tmp_path / "rows.csv").write_text(rows_csv(collect(results)))
    again = spread_out(rows_of(tmp_path / "rows.csv"))
    read = tables_of(again, best_per_cell(again))[0]
    assert {name: to_csv(table) for name, table in read.items()} == {name: to_csv(tables[name]) for name in tables}


def test_notes_on_means_stand_where_the_means_do(tmp_path):
    """Two own sizes in accuracy; of the task in bits one, and one tested at another length."""
    for length in (32, 48):
        fakes.add_run(tmp_path, [0.3, 0.9, 0.5], setting=f"seq_len={length}", seq_len=length)
    for setting, length in (("seq_len=32", None), ("seq_len=32,test_seq_len=64", 64)):
        fakes.add_run(tmp_path, TEXT["attn"][0], task="prose", setting=setting, test_seq_len=length, score=BITS)
    frame = fakes.frame_of(tmp_path)
    tables, _ = tables_of(frame, best_per_cell(frame))
    said = {
        name: ["the mean of 2" in to_markdown(table), "at another length" in to_markdown(table)]
        for name, table in tables.items()
    }
    assert said == {"accuracy": [True, False], "bits_per_byte": [False, True], "settings": [True, True]}


def test_the_legend_has_the_limit_of_accuracies_where_one_is_marked(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.5, 0.9])
    fakes.add_run(tmp_path, [1.5, 1.3, 1.0], task="prose", score=BITS)
    frame = fakes.frame_of(tmp_path)
    tables, _ = tables_of(frame, best_per_cell(frame))
    said = {name: note.split("best")[0] for name in tables for note in tables[name].notes if note[:2] == "† "}
    limits = {"accuracy": "† below 0.98, and ", "settings": "† below 0.98 if it is an accuracy, and "}
    assert said == {**limits, "bits_per_byte": "† "}


def test_each_score_has_figures_of_its_own(results, monkeypatch):
    frame = fakes.frame_of(results)
    cells = best_per_cell(frame)
    for name in ("by_task", "heat_map", "difficulty", "learning_rates", "score_by_size", "training_curves"):
        monkeypatch.setattr(report_figures, name, lambda scores, *more: scores)
    made = dict(report_figures.report_figures([results], frame, cells, cells, "official", None, is_first=True))
    for name in ("settings", "difficulty", "learning_rates", "state_size", "training_curves"):
        assert made[name].tasks == made["accuracy"].tasks == ["icr"]
        assert made[f"{name}_bits_per_byte"].tasks == made["bits_per_byte"].tasks == ["code", "prose"]


def test_a_column_stands_where_it_has_runs(tmp_path):
    fakes.add_run(tmp_path, TEXT["attn"][0], mixer="attn", task="prose", score=BITS)
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], mixer="gdn")
    frame = fakes.frame_of(tmp_path)
    tables, benchmark = tables_of(frame, cells := best_per_cell(frame))
    shown = {name: [column.mixer for column in table.frame] for name, table in tables.items()}
    assert shown == {"accuracy": ["gdn"], "bits_per_byte": ["attn"], "settings": ["attn", "gdn"]}
    drawn = dict(report_figures.report_figures([tmp_path], frame, cells, benchmark, "official", None, is_first=True))
    assert [tick.get_text() for tick in drawn["settings_bits_per_byte"].axes[0].get_yticklabels()] == ["attn"]


def test_a_figure_of_bits_has_an_axis_of_their_size_and_less_is_brighter(results):
    frame = spread_out(only_where(collect(results), ["task=prose"]))
    scores = Scores(frame, best_per_cell(frame), "official")
    figure = by_task(scores)
    (panel,) = figure.axes
    low, high = panel.get_xlim()
    assert 1.1 < low < 1.205 < 1.395 < high < 1.5 and panel.get_xlabel() == "bits per byte"
    assert_legible(figure)
    (attn,), (gdn,) = heat_map(scores).axes[0].images[0].get_array()
    assert (attn, gdn) == (-1.205, -1.395)


def test_a_task_that_has_got_another_score_since(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], task="prose")
    fakes.add_run(tmp_path, TEXT["attn"][0], task="prose", mixer="gdn", score=BITS)
    frame = fakes.frame_of(tmp_path)
    tables, _ = tables_of(frame, best_per_cell(frame))
    names = [setting for _, setting in tables["settings"].frame.index]
    assert names == ["baseline, score=accuracy", "baseline, score=bits_per_byte"]
    assert [len(tables[name].frame) for name in ("accuracy", "bits_per_byte")] == [1, 1]
